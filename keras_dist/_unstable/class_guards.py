"""Functions that `Configurable` classes of keras_dist apply to their methods once JAX, which they need, is loaded."""

from __future__ import annotations

from collections.abc import Callable

_guards: list[Callable[[type], object]] = []
_classes: list[type] = []


def guard_class(cls: type) -> None:
    """Apply the guards to a class, now and when further guards are added."""
    _classes.append(cls)
    for guard in _guards:
        guard(cls)


def add_guard(guard: Callable[[type], object]) -> None:
    """Apply a guard to all classes, also to later ones."""
    _guards.append(guard)
    for cls in _classes:
        guard(cls)
