"""The page of config files, from the pydantic models that check them."""

from __future__ import annotations

import inspect
import json
import re
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


def pages() -> dict[str, str]:
    """Return the page of the schema by its path."""
    kinds = [value for name in config.__all__ if _is_table(value := getattr(config, name))]
    first: list[Any] = [config.RunConfig, config.MeshConfig]
    ordered = [*first, *sorted((kind for kind in kinds if kind not in first), key=_title)]
    return {"schema.md": "\n".join([INTRODUCTION, *(line for kind in ordered for line in _table(kind))])}


def _is_table(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, ConfigTable)


def _title(kind: type[BaseModel]) -> str:
    found = re.match(r"`(.*?)`", inspect.getdoc(kind) or "")
    strategy = kind.model_fields.get("strategy")
    name = "whole file" if kind is config.RunConfig else found[1] if found else kind.__name__
    return (
        f"[distribution] strategy = {json.dumps(strategy.default)}"
        if strategy and isinstance(strategy.default, str)
        else name
    )


def _table(kind: type[BaseModel]) -> list[str]:
    doc = inspect.getdoc(kind) or ""
    said = {name: " ".join(text.split()) for name, text in re.findall(r"^    (\w+): (.*(?:\n {6,}.*)*)", doc, re.M)}
    prose = re.split(r"\n\n(?:Args|Raises|Attributes|Example):", doc)[0]
    lines = [f"## {_title(kind)}", "", prose, "", "| key | default | |", "|---|---|---|"]
    for name, field in kind.model_fields.items():
        allowed = "" if not field.description else f" Allowed: {field.description}."
        lines.append(f"| `{name}` | {_default(field)} | {_cell(said.get(name, '') + allowed)} |")
    return [*lines, ""]


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
