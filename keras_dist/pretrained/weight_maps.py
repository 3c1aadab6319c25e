"""`weight_map`: names and forms of a network's weights in files of `transformers`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_dist.formats.weight_map import Joined, WeightMap
from keras_dist.pretrained.config import DecoderConfig
from keras_dist.pretrained.family import family_named


def weight_map(
    model: Any, ignore: Sequence[str] = (), names_in_file: Iterable[str] | None = None, *, joins_experts: bool = False
) -> WeightMap:
    """Return the names and forms of a network's weights in files of `transformers`, by default in new files."""
    family = family_named(model.config.family)
    paths = [weight.path for weight in model.weights]
    tied = isinstance(model.config, DecoderConfig) and model.config.tied_head
    has_prefix = family.has_prefix(model.config)
    names_in_file = names_in_file if names_in_file is None else set(names_in_file)
    names, transform = family.tables((".experts.gate_up_proj",) if joins_experts else names_in_file or ())
    if family.prefix and names_in_file is not None:
        has_prefix = any(name.startswith(family.prefix) for name in names_in_file)

    def stripped(name: Any) -> Any:
        if has_prefix or not family.prefix:
            return name
        if isinstance(name, Joined):
            return dataclasses.replace(name, names=tuple(map(stripped, name.names)))
        return name.removeprefix(family.prefix)

    return WeightMap(
        names={path: stripped(name) for path, name in _used(names, paths).items()},
        transform=_used(transform, paths),
        tied={name: stripped(other) for name, other in family.copies.items()} if tied else {},
        ignored=(*family.ignored, *ignore),
    )


def _used(rules: Mapping[Any, Any], paths: Iterable[str]) -> dict[Any, Any]:
    """Return the rules that match a path: tables of a family are for all of its networks."""
    paths = list(paths)

    def is_used(rule: str) -> bool:
        compiled = re.compile(rule.replace("/{}", r"(?:/\d+)?"))
        return any(map(compiled.fullmatch, paths))

    return {key: value for key, value in rules.items() if any(map(is_used, [key] if isinstance(key, str) else key))}
