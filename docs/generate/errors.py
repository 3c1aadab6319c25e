"""The index of errors, from the places in the source that raise them: message, what was given, way out."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import keras_dist
from keras_dist import errors

SOURCE = pathlib.Path(keras_dist.__file__).parent
INTRODUCTION = """# Errors

Every message of keras_dist that names a mistake, with its way out; `…` is a name or a number of your program. All are
subclasses of `kd.errors.KerasDistError` and of the built-in exception that Keras raises in the same place, and carry
their parts as attributes: `error.summary`, `error.given`, `error.expected`, `error.fix`. Type some words of a message
into the field above a table.

What an exit code means is on the page of [the commands](cli.md).
"""

Row = tuple[str, str, str]
Texts = Mapping[str, ast.AST]
BUILDERS = {"argument_error": "ModelError", "unknown_name_error": "UnknownNameError"}
"""Functions that make the text of an error, with the class that they make by default."""


def pages() -> dict[str, str]:
    """Return the index by its path."""
    found: dict[str, set[Row]] = defaultdict(set)
    for file in sorted(SOURCE.rglob("*.py")):
        for kind, row in raised(ast.parse(file.read_text())):
            found[kind].add(row)
    kinds = {name: value for name, value in vars(errors).items() if inspect.isclass(value) and name in found}
    lines = [INTRODUCTION]
    for name in sorted(kinds):
        lines += [f"## {name}", "", inspect.getdoc(kinds[name]) or "", ""]
        lines += ["| message | way out |", "|---|---|"]
        lines += [
            f"| {summary} | {fix or f'expected: {expected}' * bool(expected)} |"
            for summary, expected, fix in sorted(found[name])
        ]
        lines.append("")
    return {"errors.md": "\n".join(lines)}


def raised(tree: ast.AST) -> Iterator[tuple[str, Row]]:
    """Yield the class of each error that this source makes, with its message, what was expected, and the way out."""
    known = {name for name in vars(errors) if name.endswith("Error")}
    texts = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        kind = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        parts = {each.arg: _text(each.value, texts) for each in node.keywords}
        if kind in BUILDERS:
            yield from _built(kind, node, parts, texts)
            continue
        summary, expected, fix = _text(node.args[0], texts), parts.get("expected", ""), parts.get("fix", "")
        if kind in known and len(re.findall(r"[a-z]{2,}", summary)) > 2:
            yield kind, (summary, *(text if text.strip("… /") else "" for text in (expected, fix)))


def _built(kind: str, node: ast.Call, parts: Mapping[str | None, str], texts: Texts) -> Iterator[tuple[str, Row]]:
    """Yield the error of a function that makes the text from an argument and what is expected."""
    given = next((each.value for each in node.keywords if each.arg == "error"), None)
    named = getattr(given, "id", getattr(given, "attr", BUILDERS[kind]))
    if kind == "argument_error" and len(node.args) > 2:
        argument, expected = _text(node.args[0], texts), _text(node.args[2], texts)
        wrong, of = parts.get("wrong") or f"must be {expected}", " of layer …" if "layer" in parts else ""
        default = f"expected: {expected}" if parts.get("wrong") else f"correct `{argument}`, or leave it out"
        summary, fix = f"`{argument}`{of} {wrong}", parts.get("fix", "") or default
        if not re.search("[a-z]{3}", wrong.removeprefix("must be ")):
            return
    else:
        summary, fix = f"{_text(node.args[0], texts)} …", "correct the name: the error lists all names"
    if named in vars(errors) and re.search("[a-z]{3}", summary):
        yield named, (summary, "", fix)


def _text(node: ast.AST, texts: Texts) -> str:
    """Return the text of an expression for a cell of a table, with `…` for what only a run can say."""
    if isinstance(node, ast.Constant):
        return _plain(node.value) if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name) and node.id in texts:
        return _text(texts[node.id], {})
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, {}) if isinstance(each, ast.Constant) else "…" for each in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left, texts) + _text(node.right, texts)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, texts)} / {_text(node.orelse, texts)}"
    return "…"


def _plain(text: str) -> str:
    """Return text without markup of Markdown but backticks."""
    for sign in "\\|*_[]<>$":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")
