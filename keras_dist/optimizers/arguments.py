"""Keyword arguments that all optimizers share: types and checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, TypedDict

from keras_dist._support.arguments import check_exclusive, check_number, check_optional
from keras_dist._support.safe_patterns import pattern
from keras_dist.errors import ModelError, nearest, shorten


class ArgumentsButDecay(TypedDict, total=False):
    """The keyword arguments of every optimizer, without `weight_decay`; see `Optimizer`."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str | None
    mesh: object


class CommonArguments(ArgumentsButDecay, total=False):
    """The keyword arguments of every optimizer; see `Optimizer`."""

    weight_decay: float | None


def check_known(cls: type, unknown: dict[str, Any]) -> None:
    """Check that an optimizer has no unknown keyword arguments."""
    if not unknown:
        return
    name, value = next(iter(unknown.items()))
    if name == "decay":
        fix = f"learning_rate=schedules.InverseTimeDecay(rate, decay_steps=1, decay_rate={shorten(value)})"
        raise ModelError(f"{cls.__name__} has no argument 'decay'", given=f"decay={shorten(value)}", fix=fix)
    parameters = [
        parameter
        for base in cls.__mro__
        if hasattr(base, "transformation") and "__init__" in vars(base)
        for parameter in list(inspect.signature(base.__init__).parameters.values())[1:]
    ]
    known = dict.fromkeys(p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD)
    meant = "learning_rate" if name == "lr" else nearest(name, known)
    summary = f"{cls.__name__} has no argument {name!r}" + (f" (did you mean {meant!r}?)" if meant else "")
    fix = f"write {meant}=..." if meant else f"leave it out; the arguments are {', '.join(known)}"
    raise ModelError(summary, given=f"{name}={shorten(value)}", fix=fix)


def check_clips(clips: dict[str, Any]) -> None:
    """Check that at most one limit for clipping is given, and is positive."""
    check_exclusive(**clips)
    for name, value in clips.items():
        check_optional(check_number, name, value, above=0)


def check_patterns(owner: str, argument: str, values: Iterable[str] | None) -> tuple[str, ...]:
    """Return regular expressions as a tuple, which is empty for None."""
    problem = "a string" if isinstance(values, str) else ""
    try:
        rules = tuple(values or ())
        for rule in rules:
            pattern(rule)
    except (TypeError, re.error) as error:
        rules, problem = (), str(error)
    if problem:
        summary = f"{owner}: `{argument}` must be a list of regular expressions"
        given = f"{argument}={shorten(values)}: {problem}"
        raise ModelError(summary, given=given, fix=f"for example {argument}=['bias']")
    return rules
