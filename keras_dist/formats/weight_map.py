r"""`WeightMap`: names and forms of weights in files of other programs, in both directions.

A weight is divided into pieces, and so is each array of a file; the map pairs them. Loading and saving follow the same
pairs, so that no second description is needed to save. Axes and sizes are written down and not guessed from a file,
because a model is saved before a file exists.

`{}` and not a number of layers stands in names: a stack of layers has as many as its leading dim, and one rule serves
the layers of a model whether they are stacked or not. In the compiled rule `{}` is a group, which the user's references
to groups do not count.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_dist._support.safe_patterns import Patterns, pattern
from keras_dist.errors import ModelError, did_you_mean, shorten
from keras_dist.formats.weight_pieces import Cut, Piece
from keras_dist.formats.weight_transforms import Chain, Shape, Transform, transform_of
from keras_dist.training.graph import compile_rule


@dataclasses.dataclass(frozen=True, init=False)
class Joined:
    """Arrays that are joined along an axis.

    Args:
        names: of arrays in the file which make one weight. For a tuple of paths, the name of the one array that
            consists of these weights.
        axis: of the weight that consists of arrays, or of the array that consists of weights.
        sizes: of the arrays along the axis of the weight; by default equal. The parts of an array have the sizes of
            the weights.
        interleaved: whether elements of the weights of a tuple take turns along the axis of the array.
    """

    names: tuple[str, ...]
    axis: int
    sizes: tuple[int, ...] | None
    interleaved: bool

    def __init__(
        self, names: str | Sequence[str], axis: int, sizes: Sequence[int] | None = None, interleaved: bool = False
    ) -> None:
        object.__setattr__(self, "names", (names,) if isinstance(names, str) else tuple(names))
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "sizes", None if sizes is None else tuple(sizes))
        object.__setattr__(self, "interleaved", interleaved)


@dataclasses.dataclass(frozen=True, eq=False)
class WeightMap:
    r"""Names and forms of the weights of a model in files of another program.

    What `load_weights(path, weight_map=...)` needs is enough for `save_weights(path, weight_map=...)`.

    A rule is a regular expression for the whole path of a weight. A path that is a rule itself comes first. `{}` in a
    rule matches the number of a layer, and stands for that number in the name. Where the path has no number, the weight
    is a stack: its leading dim has one array of the file for each index. So
    `"layers/{}/norm/scale": "model.layers.{}.norm.weight"` serves the weights `layers/0/norm/scale`,
    `layers/1/norm/scale`, ... as well as one weight `layers/norm/scale` of all layers.

    Args:
        names: a dict from rules to names in the file. `\1` in a name stands for the first group of the rule. `{}` in a
            name that the rule lacks stands for the next leading dim of the weight. A list of names, or a `Joined`, is
            for a weight that consists of several arrays; a list is joined along the last axis. A tuple of rules is for
            an array that consists of several weights, joined along its first axis, or as `Joined` says. Other weights
            have their paths as names.
        transform: a dict from rules to changes of form, between an array of the file and the weight or its part in that
            array: `Linear`, `Permute`, `Reshape`, `Offset`, a pair of functions `(load, save)` of an array, or a list
            of these in the order of loading. A single function serves loading only. If loading returns a view of the
            array, each device reads its part. If a function computes, the whole array is read, twice.
        tied: a dict from rules for names in the file to other names there with the same values. A file may leave out
            such an array; then the other one is loaded. If the file has both, they must be equal. Only the other one
            is saved, and must be in the map or in the file.
        ignored: rules for names in the file that no weight needs. They are not saved.

    Raises:
        ModelError: an argument has another form; all mistakes are listed.

    Example:
        A model with one kernel for query, key and value, in a file with three.

        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import keras_dist as kd
        >>> from safetensors.numpy import load_file
        >>> weight_map = kd.interop.WeightMap(
        ...     names={r"qkv_{}/kernel": [f"layers.{{}}.{kind}_proj.weight" for kind in "qkv"]},
        ...     transform={".*/kernel": kd.interop.Linear()},
        ... )
        >>> model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(6, use_bias=False, name="qkv_0")])
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> model.save_weights(folder, weight_map=weight_map)
        >>> {name: value.shape for name, value in sorted(load_file(folder / "model.safetensors").items())}
        {'layers.0.k_proj.weight': (2, 3), 'layers.0.q_proj.weight': (2, 3), 'layers.0.v_proj.weight': (2, 3)}
        >>> print(model.load_weights(folder, weight_map=weight_map))
        1 loaded: qkv_0/kernel
    """

    names: Mapping[str | tuple[str, ...], str | Sequence[str] | Joined] = dataclasses.field(default_factory=dict)
    transform: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: Sequence[str] = ()

    def __post_init__(self) -> None:
        given = {argument: _wrong_in(argument, getattr(self, argument)) for argument in _EXAMPLES}
        wrong = {argument: values for argument, values in given.items() if values}
        if wrong:
            raise ModelError(
                f"WeightMap: {', '.join(f'`{argument}`' for argument in wrong)} cannot be used",
                given="; ".join(f"{argument}: {shorten(value)}" for argument, each in wrong.items() for value in each),
                fix="for example " + ", ".join(_EXAMPLES[argument] for argument in wrong),
            )
        for rule in self.ignored:
            compile_rule(rule, "ignored")
        for argument in ("names", "transform", "tied"):
            Rules(argument, getattr(self, argument))

    def pieces_of(self, shapes: Mapping[str, Shape]) -> tuple[dict[str, list[Piece]], tuple[str, ...]]:
        """Return the pieces of weights of these shapes by path, and the rules that match none, as `names['...']`."""
        names, transforms = Rules("names", self.names), Rules("transform", self.transform)
        found: dict[str, list[Piece]] = {}
        members: dict[tuple[Any, str], dict[int, tuple[str, int]]] = {}
        for path, shape in shapes.items():
            naming, changing = names.match(path), transforms.match(path)
            transform = (None if changing is None else transform_of(changing.value)) or Chain()
            found[path] = list(_pieces(path, naming, shape, transform))
            if naming is not None and isinstance(naming.key, tuple):
                for place, piece in enumerate(found[path]):
                    of_name = members.setdefault((naming.key, piece.name), {})
                    if naming.member in of_name:
                        raise _same_part(naming, piece.name, path, of_name[naming.member][0])
                    of_name[naming.member] = (path, place)
        for (key, name), places in members.items():
            _cut(key, name, self.names[key], places, found)
        return found, (*names.unused(), *transforms.unused())

    def alias(self, name: str) -> str | None:
        """Return the other name under which a file has the values of this array; None without one."""
        found = self._tied.match(name)
        if found is None:
            return None
        alias = found.expanded(found.value)
        for number in found.numbers:
            alias = alias.replace(INDEX, number or INDEX, 1)
        return alias

    def unknown_ties(self, names: Collection[str], extra: Collection[str] = ()) -> list[str]:
        """Return the rules of `tied` for other names than these, or that match none where one of `extra` is near."""
        rules = Rules("tied", self.tied)
        for name in names if self.tied else ():
            rules.match(name)
        found: list[str] = []
        for rule, other in self.tied.items():
            wanted = pattern(".+".join(map(re.escape, _PLACES.split(other))))
            near = did_you_mean(rule, extra) if f"tied[{rule!r}]" in rules.unused() else ""
            if not any(map(wanted.fullmatch, names)):
                found.append(f"tied[{rule!r}] = {other!r}{did_you_mean(other, names)}")
            elif near:
                found.append(f"tied[{rule!r}]{near}")
        return found

    def ignores(self, name: str) -> bool:
        """Whether no weight needs this array of a file."""
        return bool(self._ignored.matching(name))

    @functools.cached_property
    def _tied(self) -> Rules:
        return Rules("tied", self.tied)

    @functools.cached_property
    def _ignored(self) -> Patterns:
        return Patterns(self.ignored)


_PLACES = re.compile(r"\\\d|\\g<\d+>|\{\}")  # placeholders of groups and numbers in a name

_EXAMPLES = {
    "names": r'names={"layers/{}/(up|down)/kernel": r"model.layers.{}.mlp.\1_proj.weight"}',
    "transform": 'transform={".*/kernel": kd.interop.Linear()}',
    "tied": 'tied={"lm_head.weight": "model.embed_tokens.weight"}',
    "ignored": r'ignored=(r".*\.inv_freq",)',
}


def _wrong_in(argument: str, rules: Any) -> list[Any]:
    """Return the values in an argument that cannot be used."""
    if argument == "ignored":
        is_fine = not isinstance(rules, str) and (not rules or _are_texts(rules))
        return [] if is_fine else [rules]
    if not isinstance(rules, Mapping):
        return [rules]
    if argument == "names":
        return [{rule: value} for rule, value in rules.items() if not _is_naming(rule, value)]
    is_fine = _is_text if argument == "tied" else transform_of
    return [{rule: value} for rule, value in rules.items() if not (_is_text(rule) and is_fine(value))]


def _is_naming(rule: Any, value: Any) -> bool:
    if isinstance(rule, tuple):
        names = value.names if isinstance(value, Joined) else (value,)
        return len(names) == 1 and _are_texts(names) and _are_texts(rule)
    if isinstance(value, Joined) and value.interleaved:
        return False  # of weights alone
    names = value.names if isinstance(value, Joined) else (value,) if isinstance(value, str) else value
    sizes = value.sizes if isinstance(value, Joined) else None
    return isinstance(rule, str) and _are_texts(names) and (sizes is None or len(sizes) == len(names))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(one, str) for one in value)


def _pieces(path: str, naming: Match | None, shape: Shape, transform: Transform) -> Iterator[Piece]:
    """Yield the pieces of a weight, in the order of the names in the file."""
    if naming is None:
        yield Piece(path, (0,) * len(shape), shape, transform)
        return
    value = naming.value
    joined = value if isinstance(value, Joined) else None if isinstance(value, str) else Joined(value, -1)
    names = (str(value),) if joined is None else joined.names
    templates = [naming.expanded(name) for name in names]
    stacked = _stacked(path, naming, templates, shape)
    part = shape[stacked:]
    sizes = None if joined is None or isinstance(naming.key, tuple) else _sizes(path, joined, part)
    for index in itertools.product(*map(range, shape[:stacked])):
        start = 0
        for number, template in enumerate(templates):
            name = _filled(template, naming.numbers, index)
            if sizes is None or joined is None:
                yield Piece(name, (*index, *(0,) * len(part)), part, transform)
                continue
            axis, size = joined.axis % len(part), sizes[number]
            begin, extent = [0] * len(part), [*part]
            begin[axis], extent[axis] = start, size
            yield Piece(name, (*index, *begin), tuple(extent), transform)
            start += size


def _stacked(path: str, naming: Match, templates: Sequence[str], shape: Shape) -> int:
    """The number of leading dims that are stacks of arrays in the file."""
    [count, *others] = sorted({template.count(INDEX) for template in templates})
    known = sum(number is not None for number in naming.numbers)
    if not others and len(naming.numbers) <= count <= known + len(shape):
        return count - known
    summary = f"WeightMap: the `{INDEX}` of {naming.value!r} do not fit the weight {path!r}"
    fix = f"write as many `{INDEX}` in each name as in the rule, and one more for each leading dim that is a stack"
    raise ModelError(summary, given=f"the rule {naming.key!r}, a weight of {len(shape)} dims", fix=fix)


def _filled(template: str, numbers: Sequence[str | None], index: Sequence[int]) -> str:
    """Return a name with the numbers of the path, and the index in the stack where the path has none."""
    rest = iter(index)
    text, *parts = template.split(INDEX)
    for place, part in enumerate(parts):
        number = numbers[place] if place < len(numbers) else None
        text += f"{next(rest) if number is None else number}{part}"
    return text


def _sizes(path: str, joined: Joined, part: Shape) -> Sequence[int]:
    """The sizes of the arrays that a weight consists of."""
    count, axis = len(joined.names), joined.axis
    size = part[axis] if -len(part) <= axis < len(part) else 0
    if joined.sizes is not None and sum(joined.sizes) == size:
        return joined.sizes
    if joined.sizes is None and size and size % count == 0:
        return [size // count] * count
    summary = f"WeightMap: the weight {path!r} cannot consist of {count} arrays along axis {axis}"
    given = f"shape {part}, {'equal sizes' if joined.sizes is None else f'sizes={joined.sizes}'}"
    fix = f'give the axis, and the sizes along it: Joined(["a.weight", "b.weight"], axis={axis}, sizes=(64, 32))'
    raise ModelError(summary, given=given, fix=fix)


def _cut(
    key: tuple[str, ...], name: str, value: Any, places: Mapping[int, tuple[str, int]], found: dict[str, list[Piece]]
) -> None:
    """Give the pieces of one array in a file their places in it."""
    missing = [rule for member, rule in enumerate(key) if member not in places]
    if missing:
        summary = f"WeightMap: {name!r} consists of weights of which the model lacks some"
        raise ModelError(summary, given=f"no weight for {shorten(missing)}", fix="correct the rules of this tuple")
    parts = [places[member] for member in range(len(key))]
    shapes = [piece.transform.file_shape(piece.shape) for piece in (found[path][place] for path, place in parts)]
    axis = value.axis if isinstance(value, Joined) else 0
    dims = len(shapes[0])
    rests = {(*shape[: axis % dims], *shape[axis % dims + 1 :]) for shape in shapes} if -dims <= axis < dims else ()
    if len(rests) != 1:
        summary = f"WeightMap: weights of these shapes in the file cannot be joined along axis {axis} to {name!r}"
        given = ", ".join(f"{path} {shape}" for (path, _), shape in zip(parts, shapes, strict=True))
        raise ModelError(summary, given=given, fix="correct `transform`, or the axis: Joined(name, axis=1)")
    axis %= dims
    whole = (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])
    interleaved = isinstance(value, Joined) and value.interleaved
    if interleaved and len(sizes := {shape[axis] for shape in shapes}) > 1:
        summary = f"WeightMap: weights of different sizes along axis {axis} cannot take turns in {name!r}"
        raise ModelError(summary, given=f"sizes {sorted(sizes)}", fix="leave out `interleaved`")
    start = 0
    for number, ((path, place), shape) in enumerate(zip(parts, shapes, strict=True)):
        if interleaved:
            cut = Cut(axis, number, whole[axis], whole, len(parts))
        else:
            cut = Cut(axis, start, start + shape[axis], whole)
        found[path][place] = dataclasses.replace(found[path][place], cut=cut)
        start += shape[axis]


def _same_part(naming: Match, name: str, path: str, other: str) -> ModelError:
    summary = f"WeightMap: {path!r} and {other!r} are the same part of {name!r}"
    fix = "repeat in the name what differs in the paths: `{}`, or a group"
    return ModelError(summary, given=f"the rule {naming.key!r}", fix=fix)


INDEX = "{}"
_INDEX = re.compile(r"(\\?[/_.])?\{\}")  # `{}` in a rule, with what separates it from the name before
_NUMBER = "keras_dist_index_"
_REFERENCE = re.compile(r"\\(?:(\d)|g<(\d+)>)")


@dataclasses.dataclass(frozen=True)
class Match:
    """A rule that matches a path."""

    key: str | tuple[str, ...]  # the rule as it was written: alone, or in a tuple
    member: int  # its number in the tuple
    value: Any  # what the rule is mapped to
    numbers: tuple[str | None, ...]  # what `{}` stands for, in order; None where the path has no number there
    found: Any  # the match of the regular expression; None for a path that is the rule

    def expanded(self, name: str) -> str:
        r"""Return a name with the groups of the rule for `\1` and so on."""
        if self.found is None or "\\" not in name:
            return name
        indices = self.found.re.groupindex
        ours = {index for group, index in indices.items() if group.startswith(_NUMBER)}
        groups = [index for index in range(self.found.re.groups + 1) if index not in ours]
        try:
            return self.found.expand(_REFERENCE.sub(lambda one: rf"\g<{groups[int(one[1] or one[2])]}>", name))
        except (re.error, IndexError) as error:
            summary = f"WeightMap: a name asks for what its rule does not have: {error}"
            fix = "put parentheses around what the name repeats, and write the name as a raw string"
            raise ModelError(summary, given=f"{name!r} for {self.key!r}", fix=fix) from error


class Rules:
    """The rules of an argument, each a regular expression for whole paths; it counts which ones match."""

    def __init__(self, argument: str, rules: Mapping[Any, Any]) -> None:
        self._argument = argument
        self._values = rules
        self._exact: dict[str, tuple[Any, int]] = {}
        self._compiled: dict[str, tuple[Any, int]] = {}
        for key in rules:
            for member, rule in enumerate(_members(key)):
                compile_rule(_INDEX.sub("", rule), argument)
                compiled = _compiled(rule)
                if compiled in self._compiled:
                    summary = f"WeightMap: the rule {rule!r} is in `{argument}` twice"
                    raise ModelError(summary, given=f"{key!r} and {self._compiled[compiled][0]!r}", fix="leave one out")
                self._compiled[compiled] = self._exact[rule] = (key, member)
        self._patterns = Patterns(self._compiled)
        self._unused = dict.fromkeys(rules)

    def match(self, path: str) -> Match | None:
        """Return the rule for a path: the path itself, else the regular expression that matches it."""
        compiled = None
        if path not in self._exact:
            matching = self._patterns.matching(path)
            if len(matching) > 1:
                summary = f"WeightMap: {path!r} matches several rules of `{self._argument}`"
                given = ", ".join(repr(_members(key)[member]) for key, member in map(self._compiled.get, matching))  # type: ignore[misc]
                raise ModelError(summary, given=given, fix="make the regular expressions narrower")
            if not matching:
                return None
            [compiled] = matching
        key, member = self._exact[path] if compiled is None else self._compiled[compiled]
        self._unused.pop(key, None)
        found = None if compiled is None else pattern(compiled).fullmatch(path)
        count = _members(key)[member].count(INDEX)
        numbers = tuple(found[f"{_NUMBER}{each}"] for each in range(count)) if found is not None else ()
        return Match(key, member, self._values[key], numbers, found)

    def unused(self) -> list[str]:
        """Return the rules that have matched nothing, as `names['...']`."""
        return [f"{self._argument}[{key!r}]" for key in self._unused]


def _members(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _compiled(rule: str) -> str:
    """Return a rule with groups of digits for `{}`, which a path of a stack lacks."""
    parts: Iterable[str] = _INDEX.split(rule)
    text, *rest = parts
    for number in range(len(rest) // 2):
        before, after = rest[2 * number] or "", rest[2 * number + 1]
        text += f"(?:{before}(?P<{_NUMBER}{number}>\\d+))?{after}"
    return text
