"""`LayoutMap`: layout rules for paths of variables.

A rule is an exact path, else a regular expression for the whole path, as in Keras; a path that several rules match is
an error that names them. The rules of the user come first, then the annotations of the model (`<weight>_layout=`,
sharding metadata of NNX and Linen): models of others are annotated, and ignoring that would replicate their weights
silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, ClassVar, Self

from keras_dist._support import html_tables
from keras_dist._support.arguments import check_kind, is_keras_object
from keras_dist._support.safe_patterns import Patterns, is_literal, pattern
from keras_dist.distribution.layout import Axis, TensorLayout, from_keras
from keras_dist.distribution.mesh import DeviceMesh, check_mesh
from keras_dist.distribution.render import render_axes
from keras_dist.errors import LayoutError, shorten, with_type


class LayoutMap(MutableMapping[str, TensorLayout]):
    """An ordered mapping from path rules to layouts.

    A path is looked up as a key first; otherwise keys are regular expressions that must match the whole path. Matching
    has a time limit. `len`, iteration, `in`, `pop` and `del` use the keys themselves.

    Args:
        device_mesh: mesh for layouts that are inserted without one.

    Raises:
        LayoutError: `device_mesh` is not a `DeviceMesh`.

    Example:
        >>> import keras_dist as kd
        >>> rules = kd.LayoutMap(kd.DeviceMesh((2, 4), ("data", "model")))
        >>> rules[".*dense.*/kernel"] = (None, "model")
        >>> rules["encoder/dense_1/kernel"].axes
        (None, 'model')
        >>> rules["encoder/dense_1/bias"] is None
        True

    Differs from Keras: layouts can be lists; a layout of another mesh is an error; `in`, `get`, `pop` and `setdefault`
    behave as in a mapping.
    """

    _method: ClassVar[str] = "fullmatch"

    def __init__(self, device_mesh: DeviceMesh | None) -> None:
        self._layout_map: dict[str, TensorLayout] = {}
        self._device_mesh = None if device_mesh is None else check_mesh(device_mesh, LayoutError)
        self._changed()

    @classmethod
    def of(cls, layout_map: Any) -> Any:
        """Convert a `LayoutMap` of Keras; return anything else unchanged."""
        if not is_keras_object(layout_map, "LayoutMap"):
            return layout_map
        rules = cls(layout_map.device_mesh)
        rules.update(layout_map)
        return rules

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """Mesh for layouts that are inserted without one."""
        return self._device_mesh

    def __getitem__(self, key: str) -> TensorLayout | None:  # type: ignore[override]
        """Return the layout of the path `key`, or None if no rule matches.

        Raises:
            LayoutError: several rules match.
        """
        rule = self.match(key)
        return None if rule is None else self._layout_map[rule]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the layout of the path `key`, or `default` if no rule matches."""
        layout = self[key]
        return default if layout is None else layout

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the layout of the rule `key`; insert `default` if the rule does not exist."""
        if key not in self._layout_map:
            self[key] = default
        return self._layout_map[key]

    def pop(self, key: str, *default: Any) -> Any:
        """Remove the rule `key` and return its layout; `default`, if given, when the rule does not exist."""
        self._changed()
        return self._layout_map.pop(key, *default)

    def __setitem__(self, key: str, layout: TensorLayout | Sequence[Axis]) -> None:
        """Add a rule.

        Args:
            key: a path, or a regular expression for whole paths.
            layout: a `TensorLayout`, also of Keras, or its axes as a tuple or list.

        Raises:
            LayoutError: the key exists, or is not a string or regular expression; or the layout has another mesh, or
                an axis that the mesh does not have.
        """
        self._check_key(key)
        layout = TensorLayout(layout) if isinstance(layout, tuple | list) else from_keras(layout)
        if not isinstance(layout, TensorLayout):
            summary = f"rule {key!r}: {shorten(layout)} should be a TensorLayout, or a tuple or list of its axes"
            given = with_type(layout)
            raise LayoutError(summary, given=given, fix='for example rules["dense/kernel"] = (None, "model")')
        self._bind(key, layout)
        self._layout_map[key] = layout
        self._changed()

    def __delitem__(self, key: str) -> None:
        del self._layout_map[key]
        self._changed()

    def __contains__(self, key: object) -> bool:
        return key in self._layout_map

    def __len__(self) -> int:
        return len(self._layout_map)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout_map)

    def __repr__(self) -> str:
        rules = ", ".join(f"{key!r}: {layout.axes}" for key, layout in self._layout_map.items())
        return f"<{type(self).__name__} {{{rules}}}, device_mesh={self._device_mesh}>"

    def _repr_html_(self) -> str:
        mesh = "no mesh" if self._device_mesh is None else f"mesh {self._device_mesh.describe()}"
        rows = [(rule, render_axes(layout.axes)) for rule, layout in self._layout_map.items()]
        heading = html_tables.paragraph(f"{type(self).__name__} of {len(rows)} rules on {mesh}")
        return html_tables.fragment(heading, html_tables.table(("rule", "layout"), rows))

    def copy(self) -> Self:
        """Return a copy with the same rules."""
        same = type(self)(self._device_mesh)
        same._layout_map = dict(self._layout_map)
        return same

    __copy__ = copy

    def snapshot(self) -> tuple[tuple[str, TensorLayout], ...]:
        """Return the rules as they are now."""
        return tuple(self._layout_map.items())

    def rule_layout(self, rule: str) -> TensorLayout:
        """Return the layout of the rule `rule`, or raise a `KeyError`."""
        return self._layout_map[rule]

    def matching_rules(self, path: str) -> list[str]:
        """Return the keys that match `path`: the path itself if it is a key, else regular expressions."""
        check_kind("path", path, str, "a string: a path such as 'd1/kernel'", error=LayoutError)
        if path in self._layout_map:
            return [path]
        if path not in self._matched:
            if self._patterns is None:
                rules = [rule for rule in self._layout_map if self._method != "fullmatch" or not is_literal(rule)]
                self._patterns = Patterns(rules, self._method)
            self._matched[path] = self._patterns.matching(path)
        return list(self._matched[path])

    @classmethod
    def matches(cls, rule: str, path: str) -> bool:
        """Return whether `rule` as a regular expression matches `path`."""
        return getattr(pattern(rule), cls._method)(path) is not None

    def match(self, path: str, aliases: Sequence[str] = ()) -> str | None:
        """Return the key for the variable known as `path` and by `aliases`, or None.

        Raises:
            LayoutError: several keys match one of its names, or its names have different layouts.
        """
        found = {name: self.matching_rules(name) for name in (path, *aliases)}
        for name, rules in found.items():
            if len(rules) > 1:
                summary = f"Path {name!r} matches multiple layout specification keys: {rules}"
                fix = f"make the regular expressions more specific, or add an exact rule {name!r}"
                raise LayoutError(summary, given=f"path {name!r}, rules {rules}", fix=fix)
        exact = {name: rules for name, rules in found.items() if rules == [name]}
        decided = {rules[0]: name for name, rules in (exact or found).items() if rules}
        if len({self._layout_map[rule].axes for rule in decided}) > 1:
            raise LayoutError(
                f"{path!r} is known by several paths, whose rules disagree: "
                + ", ".join(f"{name!r} -> {self._layout_map[rule].axes} by {rule!r}" for rule, name in decided.items()),
                given=f"one array with the paths {[path, *aliases]}",
                fix="keep one of these rules",
            )
        return next(iter(decided), None)

    def _changed(self) -> None:
        self._patterns: Patterns | None = None
        self._matched: dict[str, list[str]] = {}  # each path is matched once

    def _check_key(self, key: Any) -> None:
        expected = "a string: a path such as 'd1/kernel', or a regular expression for whole paths"
        check_kind("rule", key, str, expected, error=LayoutError)
        if key in self._layout_map:
            summary = f"{key} already exist in the LayoutMap with value {self._layout_map[key]}"
            raise LayoutError(summary, given=f"a second rule {key!r}", fix=f"`del rules[{key!r}]` first")
        try:
            pattern(key)
        except re.error as error:
            given = f"{key!r}"
            fix = f"escape special characters: {re.escape(key)!r}"
            raise LayoutError(f"rule {key!r} is not a regular expression: {error}", given=given, fix=fix) from error

    def _bind(self, key: str, layout: TensorLayout) -> None:
        if self._device_mesh is None:
            return
        if layout.device_mesh is None:
            layout.device_mesh = self._device_mesh
        elif layout.device_mesh != self._device_mesh:
            given = f"layout {layout.axes} of mesh {layout.device_mesh.describe()}, not {self._device_mesh.describe()}"
            fix = f"insert the axes themselves: rules[{key!r}] = {layout.axes}"
            raise LayoutError(f"rule {key!r}: the layout belongs to a different mesh", given=given, fix=fix)
