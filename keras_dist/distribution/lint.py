"""Checks of layout rules: all problems are found at once, before anything is allocated.

Wrong ranks, unknown axes, dims that do not divide and ambiguous rules raise; rules without effect warn, and raise under
`strict=True`. Silent replication is the costliest failure of distributed training.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from keras_dist._support.located_warnings import warn
from keras_dist._support.safe_patterns import pattern
from keras_dist.distribution.layout import TensorLayout
from keras_dist.distribution.layout_map import LayoutMap
from keras_dist.distribution.mesh import DeviceMesh, axis_tuple, distinct_descriptions
from keras_dist.distribution.variables import PLANNED_BY_RULE, VariableSpec
from keras_dist.errors import LayoutError, LayoutWarning, did_you_mean, nearest

LIMIT_EXPLAINED = 20
"""Maximum number of rules without effect that are explained, since a hint compares a rule with all paths."""

_Effects = Literal["dead", "substring", "whole", "repeated", "reshard", "cause", "pipeline"]
Kind = Literal["rank", "axis", "indivisible", "ambiguous", "mesh", "step"] | _Effects
"""`dead`, `substring`: a rule without effect. `whole`: a weight that is not sharded. `repeated`: devices compute the
same. `reshard`: moves data. `cause`: a layout that causes the others. `pipeline`: layers that are not pipelined.
`step`: an error of the step itself. Other kinds cannot be applied."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem of the layout rules, in the four parts of an error."""

    kind: Kind
    path: str  # of the variable, or the rule if it had no effect
    summary: str
    given: str
    expected: str
    fix: str

    def __str__(self) -> str:
        return f"{self.summary}\n  given:    {self.given}\n  expected: {self.expected}\n  fix:      {self.fix}"


def check_layout(
    path: str,
    shape: Sequence[int],
    layout: TensorLayout,
    mesh: DeviceMesh,
    what: str | None = "rule",
    *,
    is_own: bool = False,
    called: str | None = None,
) -> list[Problem]:
    """Return the problems of `layout`, given by `what` or by the model itself, for an array of `shape` on `mesh`."""
    called = called or repr(path)
    decided = "" if what is None else f"{what} {layout.reason!r}, "
    given = f"shape {tuple(shape)}, layout {layout.axes}, {decided}mesh {mesh.describe()}"
    problems: list[Problem] = []

    def found(kind: Kind, summary: str, expected: str, fix: str, given: str = given) -> None:
        problems.append(Problem(kind, path, summary, given, expected, fix))

    if layout.device_mesh is not None and layout.device_mesh != mesh:
        here, there = distinct_descriptions(mesh, layout.device_mesh)
        found(
            "mesh",
            f"the layout of {called} belongs to a different mesh",
            f"a layout on mesh {here}",
            f"give the axes without a mesh: {layout.axes}"
            + ("; or set no distribution: the model then uses the mesh of its layouts" if is_own else ""),
            f"{given}; the layout's mesh is {there}",
        )
        return problems
    if len(layout.axes) != len(shape):
        way = "or make the rule more specific"
        if is_own:
            way = (
                "which overrides it, or name each dim (nnx.vmap and nnx.scan name the one that they add by "
                "transform_metadata={nnx.PARTITION_NAME: ...})"
            )
        expected = f"{len(shape)} {'entry' if len(shape) == 1 else 'entries'}, one for each dim"
        fix = f"write a rule with {expected.partition(',')[0]} for this path, {way}"
        if what is None:
            fix = f"give a layout with {expected}: an axis, several, or None"
        found("rank", f"the layout of {called} has the wrong rank", expected, fix)
        return problems
    valid = mesh.axis_sizes
    for dim, (size, axis) in enumerate(zip(shape, layout.axes, strict=True)):
        if unknown := [name for name in axis_tuple(axis) if name not in valid]:
            names = ", ".join(f"{name!r}{did_you_mean(name, valid)}" for name in unknown)
            summary = f"the layout of {called} names an axis that the mesh does not have: {names}"
            fix = "correct the name, or write None"
            if is_own:
                fix += "; or choose a mesh that has this axis, or a rule for this path, which overrides the layout"
            found("axis", summary, f"axes of mesh {mesh.describe()}, or None", fix)
        elif size % (shards := mesh.axis_size(axis)):
            without = tuple(None if d == dim else entry for d, entry in enumerate(layout.axes))
            way = "map this path to" if what is not None else "give a layout with the entries"
            found(
                "indivisible",
                f"cannot shard dim {dim} of {called}",
                f"dim {dim} = {size} divisible by axis {axis!r} = {shards}",
                f"make the dim {-(-size // shards) * shards}, or {way} {without}",
            )
    return problems


def check_names(unknown: Mapping[str, tuple[str, str]], mesh: DeviceMesh, strategy: str) -> list[Problem]:
    """Return one problem for all names in sharding metadata, by path, that are not mesh axes."""
    if not unknown:
        return []
    said = dict(unknown.values())
    return [
        Problem(
            "axis",
            next(iter(said)),
            f"the model's sharding metadata name axes that the mesh does not have: {', '.join(map(repr, unknown))}",
            f"{'; '.join(said.values())}; mesh {mesh.describe()}",
            f"axes of mesh {mesh.describe()}, or an entry of `axis_names` for each name",
            f"{strategy}(..., axis_names={dict.fromkeys(unknown)}), with an axis of the mesh, or a tuple of axes, for "
            "None where dims must be sharded; or write rules for these variables, which override the metadata",
        )
    ]


def check_rules(
    layout_map: LayoutMap,
    specs: Sequence[VariableSpec],
    tensors: Sequence[str] | None = None,
    chosen: Callable[[str], bool] = lambda rule: True,
) -> list[Problem]:
    """Return a problem for each chosen rule without effect; `tensors` are paths of activations, once known."""
    planned = [spec for spec in specs if spec.role in PLANNED_BY_RULE]
    paths = {spec.path: spec.path for spec in planned}
    paths |= {name: spec.path for spec in planned for name in spec.names if name not in paths}
    paths |= {name: name for name in tensors or ()}
    used = {rule for name in paths for rule in layout_map.matching_rules(name)}
    has_input_module = any(name.startswith("input/") for name in paths)
    dead = [
        rule
        for rule in layout_map
        if rule not in used
        and chosen(rule)
        # a rule for "input/..." may be meant for a module of this name
        and (tensors is not None or not names_tensor(rule) or (rule.startswith("input/") and has_input_module))
    ]
    return [_dead_rule(rule, layout_map, paths, index < LIMIT_EXPLAINED) for index, rule in enumerate(dead)]


def names_tensor(rule: str) -> bool:
    """Return whether `rule` is for an activation (`d2/output`) or an input (`input/image`)."""
    return re.search(r"\boutput\W*$|^\W*input\b", rule) is not None


def report(errors: Sequence[Problem], without_effect: Sequence[Problem], mesh: DeviceMesh, *, strict: bool) -> None:
    """Raise for rules that cannot be applied; warn once for rules without effect and for weights left whole."""
    fatal = [*errors, *(without_effect if strict else ())]
    if len(fatal) == 1:
        only = fatal[0]
        raise LayoutError(only.summary, given=only.given, expected=only.expected, fix=only.fix, problems=(only,))
    if fatal:
        raise LayoutError(
            f"{len(fatal)} layout rules cannot be applied on mesh {mesh.describe()}\n\n"
            + "\n\n".join(f"({index}) {problem}" for index, problem in enumerate(fatal, 1)),
            problems=tuple(fatal),
        )
    if without_effect:
        text = "\n".join(f"{problem.summary}: {problem.fix}" for problem in without_effect[:LIMIT_EXPLAINED])
        more = len(without_effect) - LIMIT_EXPLAINED
        text += f"\n... and {more} more, in `problems` of the plan" if more > 0 else ""
        dead = sum(problem.kind != "whole" for problem in without_effect)
        first = f"{dead} layout rule(s) had no effect on mesh {mesh.describe()}\n" if dead else ""
        warn(f"{first}{text}", LayoutWarning)


def _dead_rule(rule: str, layout_map: LayoutMap, paths: Mapping[str, str], is_explained: bool) -> Problem:
    """Explain why `rule` had no effect; `paths` maps each name that rules may match to a path in the table."""
    given, unused = f"rule {rule!r} -> {layout_map.rule_layout(rule).axes}", f"rule {rule!r} decided nothing"
    if not is_explained:
        return Problem("dead", rule, unused, given, "a rule that decides a path", "correct the rule, or remove it")
    shadowed = next((name for name in paths if layout_map.matches(rule, name)), None)
    if shadowed is not None:
        winner = layout_map.matching_rules(shadowed)[0]
        kind, why = ("exact", "is exact and wins") if winner == shadowed else ("earlier", "comes first")
        expected, hint = f"a path that no {kind} rule decides", f"remove it: {winner!r} {why} for {shadowed!r}"
        return Problem("dead", rule, unused, given, expected, hint)
    inside = next((name for name in paths if pattern(rule).search(name)), None)
    if inside is not None:
        known_as = "" if paths[inside] == inside else f", which is {paths[inside]!r} in the table"
        summary = f"rule {rule!r} matched nothing: it is only a part of {inside!r}{known_as}"
        hint = f"write {paths[inside]!r}" + (_widened(rule, inside) if paths[inside] == inside else "")
        return Problem("substring", rule, summary, given, "a regular expression for the whole path", hint)
    layer, _, weight = rule.rpartition("/")
    beside = list(dict.fromkeys(path[len(layer) + 1 :] for path in paths.values() if path.startswith(f"{layer}/")))
    near = nearest(rule, paths)
    some = list(dict.fromkeys(paths.values()))
    listed = ", ".join(map(repr, some[:5])) + (" ..." if len(some) > 5 else "")
    if layer and beside and not did_you_mean(weight, beside):
        hint = f"{layer!r} has no {weight!r} (it has {', '.join(map(repr, beside[:5]))}); remove the rule"
    elif near is not None:
        known_as = "" if paths[near] == near else f", which is {paths[near]!r} in the table"
        hint = f"the nearest path is {near!r}{known_as}; correct the rule, or remove it"
    else:
        hint = f"the paths are {listed or 'none'}; correct the rule, or remove it"
    return Problem("dead", rule, f"rule {rule!r} matched nothing", given, "a rule that matches a path", hint)


def _widened(rule: str, path: str) -> str:
    """Return `, or '.*kernel'`, the rule extended to match all of `path`, if it is a regular expression."""
    core = rule.removeprefix("^").removesuffix("$")
    found = pattern(rule).search(path)
    start, end = (0, len(path)) if found is None else found.span()
    before, after = (".*" if start else ""), (".*" if end < len(path) else "")
    widened = f"{before}(?:{core}){after}" if "|" in core else f"{before}{core}{after}"
    try:
        return f", or {widened!r}" if pattern(widened).fullmatch(path) else ""
    except re.error:
        return ""
