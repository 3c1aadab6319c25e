"""The page of the commands, from their options and docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer

from keras_dist.cli.app import app


def pages() -> dict[str, str]:
    """Return the page of `keras-dist` by its path."""
    group: Any = typer.main.get_command(app)
    codes = re.sub(r"^\x08?\s*Exit codes:\n", "", group.epilog or "")
    lines = ["# Commands", "", group.help, ""]
    same = "`python -P -m keras_dist` is the same program; without `-P` Python looks for modules in the current folder."
    lines += [f"{same} Each command also has `--help` and `--debug`.", ""]
    for name, command in group.commands.items():
        lines += [f"## keras-dist {name}", "", *_command(name, command)]
    return {"cli.md": "\n".join([*lines, "## Exit codes", "", "```text", codes.rstrip(), "```", ""])}


def _command(name: str, command: Any) -> list[str]:
    context = command.context_class(command)
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "debug"]
    shown = " ".join(f"[{_label(each, context)}]" if not each.required else _label(each, context) for each in arguments)
    usage = f"keras-dist {name} {'[OPTIONS] ' if options else ''}{shown}".rstrip()
    lines = [inspect.cleandoc(command.help or ""), "", "```text", usage, "```", ""]
    if not arguments + options:
        return lines
    lines += ["| | | default |", "|---|---|---|"]
    for each in arguments + options:
        spelled = ", ".join(f"`{option}`" for option in (*each.opts, *each.secondary_opts) if option.startswith("-"))
        value = "" if getattr(each, "is_flag", False) or each in arguments else f" `{_cell(_label(each, context))}`"
        default = "" if each.default in (None, False, (), []) or callable(each.default) else f"`{each.default}`"
        lines.append(f"| {spelled or f'`{_label(each, context)}`'}{value} | {_cell(each.help or '')} | {default} |")
    return [*lines, ""]


def _label(parameter: Any, context: Any) -> str:
    return parameter.metavar or parameter.display_type(context)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
