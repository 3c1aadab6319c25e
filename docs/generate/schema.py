"""The page of config files, from the pydantic models that check them."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import typing
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from keras_dist import config
from keras_dist.config.problems import ConfigTable

INTRODUCTION = """# Config files

Keys of a run in TOML, YAML or JSON. `keras-dist check run.toml` lists every mistake of a file at once, and
`kd.config.load` reads it. The program `keras-dist train` makes these objects by name; [Commands](cli.md) shows how
options change a file. A key without a default is required.
"""


_FIRST = (config.RunConfig, config.MeshConfig)


def pages() -> dict[str, str]:
    """Return the page of the schema by its path."""
    kinds = [value for name in config.__all__ if _is_table(value := getattr(config, name))]
    tables = {title: (kind, strategy) for kind in kinds for title, strategy in _titles(kind).items()}
    first = [next(title for title, (kind, _) in tables.items() if kind is one) for one in _FIRST]
    ordered = [*first, *sorted({*tables} - {*first})]
    return {
        "schema.md": "\n".join([INTRODUCTION, *(line for title in ordered for line in _table(title, *tables[title]))])
    }


def _is_table(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, ConfigTable)


def _titles(kind: type[BaseModel]) -> dict[str, str]:
    """Return the heading of a table, with the strategy that it is for; none for what several strategies share."""
    if issubclass(kind, config.DistributionConfig) and kind is not config.DistributionConfig:
        strategies = typing.get_args(kind.model_fields["strategy"].annotation)
        return {f"[distribution] strategy = {json.dumps(each)}": each for each in strategies}
    found = re.match(r"`(.*?)`", inspect.getdoc(kind) or "")
    names = {config.RunConfig: "whole file", config.Component: "objects by name: {name = ..., ...}"}
    return {names.get(kind) or (found[1] if found else kind.__name__): ""}


def _table(title: str, kind: type[BaseModel], strategy: str) -> list[str]:
    docs = [inspect.getdoc(each) or "" for each in reversed(kind.__mro__) if issubclass(each, BaseModel)]
    said = {
        name: " ".join(text.split())
        for doc in docs
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {6,}.*)*)", doc, re.MULTILINE)
    }
    heading = f"`{title.removeprefix('[distribution] ')}`" if strategy else title
    lines = [f"## {heading}", "", _prose(kind, strategy), "", "| key | default | |", "|---|---|---|"]
    for name, field in kind.model_fields.items():
        allowed = "" if not field.description else f" Allowed: {field.description}."
        if name == "strategy" and strategy:
            lines.append(f"| `strategy` | | `{json.dumps(strategy)}` |")
            continue
        text = "not an option: the strategy chooses" if field.annotation is type(None) else said.get(name, "") + allowed
        lines.append(f"| `{name}` | {_default(field)} | {_cell(text)} |")
    return [*lines, ""]


def _prose(kind: type[BaseModel], strategy: str) -> str:
    """Return the first paragraph of the docstring of a table, or of the strategy or preset that it makes."""
    makes = [strategy.title().replace("_", ""), f"presets.{strategy}"]
    found = next(((name, made) for name in makes if (made := _made(name)) is not None), None)
    if not strategy or found is None:
        return re.split(r"\n\n(?:Args|Raises|Attributes|Example):", inspect.getdoc(kind) or "")[0]
    name, made = found
    needs = inspect.isfunction(made) and "batch" in inspect.signature(made).parameters
    step = " It finds the dims in the train step, and so needs `[model]` and `[data]`." if needs else ""
    return " ".join((inspect.getdoc(made) or "").split("\n\n")[0].split()) + f" See `kd.{name}`.{step}"


def _made(name: str) -> Any:
    module, _, attribute = f"keras_dist.distribution.{name}".replace(
        "distribution.presets", "planner.presets"
    ).rpartition(".")
    return getattr(importlib.import_module(module), attribute, None)


def _default(field: Any) -> str:
    if field.default_factory is not None:
        return "empty"
    if field.default is PydanticUndefined:
        return ""
    if field.default is None:
        return "none"
    if isinstance(field.default, config.Component):
        return f"`{json.dumps(field.default.name)}`"
    if isinstance(field.default, BaseModel):
        return "defaults of its keys"
    return f"`{json.dumps(field.default)}`"


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")
