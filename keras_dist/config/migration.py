"""`migrate_layout_map`: rules for whole paths from layout maps of Keras and DTensor."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, cast

from keras_dist._support.safe_patterns import Patterns, pattern
from keras_dist.config.formats import SUFFIXES, read_table
from keras_dist.config.problems import show
from keras_dist.errors import ConfigError, did_you_mean, shorten, type_name

Matching = Literal["fullmatch", "search", "match"]
"""`fullmatch`: rules match whole paths, as in keras_dist and in Keras since February 2026. `search`: parts of paths, as
in Keras 3 before. `match`: beginnings of paths with dots, and the first match decides, as in Keras 2 and DTensor."""

_PATH = re.compile(r"[\w.]+")
_SEPARATOR = re.compile(r"\\\.|\[\.\]|(?<=[\w+)\]}])\.(?=[\w\\(])")
_ANY_AT_END = re.compile(r"(?<!\\)(?:\\\\)*\.\*$")
_END = re.compile(r"(?<!\\)(?:\\\\)*\$$")
_SHOWN = 3

Entry = str | tuple[str, ...] | None
Axes = tuple[Entry, ...]
"""For each dim an axis of the mesh, several axes, or None."""

_UNSHARDED = (None, "unsharded", "-")
_EXPECTED = "a list or tuple with an axis, several axes or None for each dim, or a layout object"
_LAYOUT_MAP = "a layout map: a table of rules (.toml, .yaml, .yml or .json)"


@dataclasses.dataclass(frozen=True)
class MigratedRule:
    """An old rule with the new rules.

    Attributes:
        old: the old rule.
        axes: the layout.
        new: the new rules; empty if the old rule decides for no path.
        decides: the paths of the model that it decides for; None without a model.
    """

    old: str
    axes: Axes
    new: tuple[str, ...]
    decides: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Migration:
    """New rules for whole paths. Printing it lists the old rules with the new ones.

    Attributes:
        matching: matching of the old rules: `"match"` or `"search"`.
        rules: the rules.
        problems: values that are not layouts, invalid and ambiguous rules, and rules without effect.
    """

    matching: Matching
    rules: tuple[MigratedRule, ...]
    problems: tuple[str, ...] = ()

    @property
    def layout(self) -> dict[str, Axes]:
        """The new rules."""
        return {new: rule.axes for rule in self.rules for new in rule.new}

    def to_toml(self) -> str:
        """Return the new rules as the table `[distribution.layout]` of a config."""
        lines = ["[distribution.layout]"]
        for rule in self.rules:
            for new in rule.new:
                was = "" if new == rule.old else f" # was {_quoted(rule.old)}"
                lines.append(f"{_quoted(new)} = {_entries(rule.axes)}{was}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the migration as plain values for JSON."""
        return {**dataclasses.asdict(self), "layout": self.layout}

    def __str__(self) -> str:
        lines = [f"{len(self.rules)} rules, taken for rules of re.{self.matching}:"]
        for rule in self.rules:
            paths = "" if rule.decides is None else f"; decides for {_listed(rule.decides) or 'nothing'}"
            lines.append(f"  {rule.old!r} -> {', '.join(map(repr, rule.new)) or 'left out'}{paths}")
        return "\n".join([*lines, *(f"problem: {problem}" for problem in self.problems)])


def migrate_layout_map(
    source: str | os.PathLike[str] | Mapping[str, Any],
    matching: Matching | None = None,
    weights: Mapping[str, Sequence[str]] | None = None,
    tensors: Sequence[str] = (),
) -> Migration:
    """Return rules for whole paths, with slashes, that are equivalent to the rules of a layout map.

    With the paths of a model, each new rule is the shortest form of the old rule that decides for the same paths, or
    one rule for each path. Without a model, dots between names become slashes, and `.*` is added before and after the
    text of a rule where it may match parts of paths.

    Args:
        source: a `LayoutMap` of keras_dist, Keras or DTensor, a dict of layouts, or a TOML, YAML or JSON file with a
            table of rules.
        matching: matching of the rules. By default `match` if a rule is a path with dots, else `search`.
        weights: for the path of each weight of the model all paths that rules can match.
        tensors: paths of the outputs of layers and of the inputs, for which Keras 3 has rules, too.

    Raises:
        ConfigError: `source` is not a layout map, or the file cannot be read or has no rules.

    Example:
        >>> from keras_dist import dtensor
        >>> mesh = dtensor.create_mesh([("batch", 2), ("model", 4)])
        >>> layout_map = dtensor.keras.LayoutMap(mesh=mesh)
        >>> layout_map["feature.kernel"] = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
        >>> print(migrate_layout_map(layout_map).to_toml())
        [distribution.layout]
        "feature/kernel.*" = ["-", "model"] # was "feature.kernel"
        >>> weights = {path: [path] for path in ("dense_1/kernel", "dense_1/bias")}
        >>> migrate_layout_map({"dense.*kernel": (None, "model")}, weights=weights).layout
        {'dense.*kernel': (None, 'model')}
    """
    if not isinstance(source, Mapping | str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        given = f"{shorten(source)} of type {type_name(source)}"
        fix = "a function that makes a map must be called first"
        raise ConfigError("`source` must be a layout map, or the path of a table of rules", given=given, fix=fix)
    rules, problems = rules_of(source) if isinstance(source, Mapping) else read_layout_map(pathlib.Path(source))
    matching = matching or _matching_of(rules)
    known: dict[str, Axes] = {}
    for rule, axes in rules.items():
        try:
            pattern(rule)
            known[rule] = axes
        except re.error as error:
            problems.append(f"rule {rule!r} is not a regular expression: {error}")
    if weights is None:
        found = [MigratedRule(rule, axes, (translated(rule, matching),), None) for rule, axes in known.items()]
    else:
        names = {**weights, **{name: (name,) for name in tensors}}
        decided, exact, ambiguous = _decided(known, matching, weights if matching == "match" else names)
        problems += ambiguous
        keys = equivalent_rules(decided, names, exact)
        found = [MigratedRule(rule, axes, tuple(keys[rule]), tuple(decided[rule])) for rule, axes in known.items()]
        problems += [_without_effect(rule, matching, names) for rule, paths in decided.items() if not paths]
    return Migration(matching, tuple(found), tuple(problems))


def translated(rule: str, matching: Matching) -> str:
    """Return a rule for whole paths from the text of a rule alone."""
    if matching == "fullmatch":
        return rule
    text = _SEPARATOR.sub("/", rule) if matching == "match" else rule
    if _has_alternatives(text):
        return f"{'.*' if matching == 'search' else ''}(?:{text}).*"
    before = ".*" if matching == "search" and not text.startswith(("^", ".*")) else ""
    after = "" if _ANY_AT_END.search(text) or _END.search(text) else ".*"
    core = text.removeprefix("^")
    return f"{before}{core[:-1] if _END.search(core) else core}{after}"


def equivalent_rules(
    decided: Mapping[str, Sequence[str]], names: Mapping[str, Sequence[str]], exact: Collection[str] = ()
) -> dict[str, list[str]]:
    """Return, for each rule, its first form that matches no other paths, else the paths themselves.

    `decided` are the paths for which each rule decides, `names` all names of each path that rules can match, `exact`
    the paths that are keys themselves.
    """
    exact = set(exact)
    keys: dict[str, list[str]] = {}
    for rule, paths in decided.items():
        wanted = set(paths)
        kept = [form for form in _forms(rule) if _matched(form, names) - exact == wanted - exact]
        keys[rule] = kept[:1] if kept and not wanted <= exact else list(paths)
    return keys


def _matching_of(rules: Mapping[str, Axes]) -> Matching:
    dotted = [rule for rule in rules if "/" not in rule and _PATH.fullmatch(rule) and "." in rule]
    return "match" if dotted and not any("/" in rule for rule in rules) else "search"


def _decided(
    rules: Mapping[str, Axes], matching: Matching, names: Mapping[str, Sequence[str]]
) -> tuple[dict[str, list[str]], set[str], list[str]]:
    """Return the paths of each rule, the paths that are rules themselves, and messages about ambiguous paths."""
    decided: dict[str, list[str]] = {rule: [] for rule in rules}
    exact: set[str] = set()
    problems: list[str] = []
    patterns, places = Patterns(rules, matching), {rule: place for place, rule in enumerate(rules)}
    for path, known in names.items():
        written = [_as_written(name, matching) for name in known]
        keys = [name for name in written if name in rules]
        found = keys or sorted({rule for name in written for rule in patterns.matching(name)}, key=places.__getitem__)
        if keys:
            exact.add(path)
        if len(found) > 1 and matching != "match":
            problems.append(f"{path!r} is matched by {', '.join(map(repr, found))}; the first is used")
        if found:
            decided[found[0]].append(path)
    return decided, exact, problems


def _without_effect(rule: str, matching: Matching, names: Mapping[str, Sequence[str]]) -> str:
    written = [_as_written(name, matching) for known in names.values() for name in known]
    if any(getattr(pattern(rule), matching)(name) for name in written):
        return f"rule {rule!r} decides for nothing: others come first"
    return f"rule {rule!r} matches nothing{did_you_mean(rule, written)}"


def _as_written(path: str, matching: Matching) -> str:
    return path.replace("/", ".") if matching == "match" else path


def _forms(rule: str) -> list[str]:
    """Return forms of a rule for whole paths with slashes, the most readable first."""
    forms = dict.fromkeys((_SEPARATOR.sub("/", rule), rule))
    wrapped = [f"(?:{form})" if _has_alternatives(form) else form for form in forms]
    candidates = [*forms, *(f"{form}.*" for form in wrapped), *(f".*{form}" for form in wrapped)]
    candidates += [f".*{form}.*" for form in wrapped]
    return [form for form in dict.fromkeys(candidates) if _is_expression(form)]


def _matched(rule: str, names: Mapping[str, Sequence[str]]) -> set[str]:
    match = pattern(rule).fullmatch
    return {path for path, known in names.items() if any(map(match, known))}


def _is_expression(text: str) -> bool:
    try:
        pattern(text)
    except re.error:
        return False
    return True


def _has_alternatives(rule: str) -> bool:
    """Whether a rule has a `|` outside groups and classes."""
    text = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "", rule)
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return "|" in text


def _quoted(text: str) -> str:
    is_plain = "\\" in text and "'" not in text and text.isprintable()
    return f"'{text}'" if is_plain else json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _entries(axes: Axes) -> str:
    return json.dumps(["-" if axis is None else list(axis) if isinstance(axis, tuple) else axis for axis in axes])


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


def read_layout_map(file: pathlib.Path) -> tuple[dict[str, Axes], list[str]]:
    """Return the rules of a table in a file, which may be inside other tables; see `rules_of`."""
    fix = "name a table of rules, or a map in a program: `keras-dist migrate module:NAME`"
    if file.suffix.lower() not in SUFFIXES and file.is_file():
        given = f"suffix {file.suffix!r}"
        raise ConfigError(f"{file}: not a layout map by its name", given=given, expected=_LAYOUT_MAP, fix=fix)
    table = read_table(file, _LAYOUT_MAP)
    while len(table) == 1 and isinstance(inner := next(iter(table.values())), dict):
        table = cast("dict[Any, Any]", inner)
    rules, problems = rules_of(table)
    if not rules:
        given = f"keys {', '.join(map(str, table)) or 'none'}"
        raise ConfigError(f"{file}: the file has no rules of a layout map", given=given, expected=_EXPECTED, fix=fix)
    return rules, problems


def rules_of(layout_map: Mapping[Any, Any]) -> tuple[dict[str, Axes], list[str]]:
    """Return the rules of a dict or a `LayoutMap` of keras_dist, Keras or DTensor, and messages about other values."""
    rules: dict[str, Axes] = {}
    problems: list[str] = []
    for rule, value in layout_map.items():
        try:
            rules[str(rule)] = _axes(value)
        except ValueError:
            problems.append(f"rule {str(rule)!r}: expected {_EXPECTED}, got {show(value)}")
    return rules, problems


def _axes(value: object) -> Axes:
    value = getattr(value, "axes", getattr(value, "sharding_specs", value))
    if not isinstance(value, list | tuple):
        raise ValueError("not a list")
    return tuple(_entry(entry) for entry in cast("Sequence[object]", value))


def _entry(value: object) -> Entry:
    if value in _UNSHARDED:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value:
        names = cast("Sequence[object]", value)
        if all(isinstance(name, str) and name not in _UNSHARDED for name in names):
            return tuple(cast("Sequence[str]", names))
    raise ValueError("not an axis")
