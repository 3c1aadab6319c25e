"""The index of errors, from the places in the source that raise them: message, what was given, way out."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras_dist
from keras_dist import errors

SOURCE = pathlib.Path(keras_dist.__file__).parent
INTRODUCTION = """# Errors

Every message of keras_dist that names a mistake, with its way out; `…` is a name or a number of your program. All are
subclasses of `kd.errors.KerasDistError` and of the built-in exception that Keras raises in the same place, and carry
their parts as attributes: `error.summary`, `error.given`, `error.expected`, `error.fix`. Type some words of a message
into the field above a table. Errors of a config begin with its file, or the key: `training.epochs: …`. What is said of
arguments of every class, as "must be an integer", is in the table of `KerasDistError`.

What an exit code means is on the page of [the commands](cli.md).
"""

Row = tuple[str, str, str]
Texts = Mapping[str, str]
"""Texts of the names that a place in the source reads; a parameter has its name between two `MARK`."""
OF_EVERY_CLASS = "KerasDistError"
"""Where the errors are listed whose class is an argument: common checks of arguments."""
CLASS_ARGUMENTS = ("error", "kind")
BUILDERS = {"argument_error": "ModelError", "unknown_name_error": "UnknownNameError"}
"""Functions that make the text of an error, with the class that they make by default."""
PARTS_OF_INDICES = ("indices", "stop", "summary", "fix")
"""Arguments of a check of indices."""
PARTS_OF_PROBLEM = ("kind", "path", "summary", "given", "expected", "fix")
"""Arguments of a problem of layout rules, which `LayoutError` lists."""
UNKNOWN = "the error shows it"
MARK = "\0"
MOST_PATHS, MOST_CALLERS = 64, 4


def pages() -> dict[str, str]:
    """Return the index by its path."""
    found = rows()
    kinds = {name: value for name, value in vars(errors).items() if inspect.isclass(value) and name in found}
    lines = [INTRODUCTION]
    for name in sorted(kinds):
        about = (inspect.getdoc(kinds[name]) or "").partition("\n\nArgs:")[0]
        lines += [f"## {name}", "", about, ""]
        lines += ["| message | way out |", "|---|---|"]
        lines += [f"| {summary} | {way_out(expected, fix)} |" for summary, expected, fix in sorted(found[name])]
        lines.append("")
    return {"errors.md": "\n".join(lines)}


def rows() -> dict[str, set[Row]]:
    """Return message, expected values and way out of all errors of the package, by class."""
    found: dict[str, set[Row]] = defaultdict(set)
    trees = {file: ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}
    constants = {_module_of(file): _constants(tree) for file, tree in trees.items()}
    for file, tree in trees.items():
        for kind, row in raised(tree, constants, has_problems=file.parent.name == "distribution"):
            found[kind].add(row)
    return found


def raised(
    tree: ast.Module, constants: Mapping[str, Texts] | None = None, has_problems: bool = False
) -> Iterator[tuple[str, Row]]:
    """Yield the class of each error that this source makes, with its message, what was expected, and the way out.

    Args:
        tree: the source of a module.
        constants: texts of other modules, which this one may import.
        has_problems: whether `Problem` is a problem of layout rules in this module.
    """
    known = {name for name in vars(errors) if name.endswith("Error")}
    places = _Places(tree, constants or {})
    for call in [call for calls in places.calls.values() for call in calls]:
        node, kind = call.node, _name_of(call.node.func)
        if isinstance(node.func, ast.Call) and _name_of(node.func.func) == "unreadable":
            kind = "DataFileMissingError"
        if kind == "check_indices" and len(node.args) == len(PARTS_OF_INDICES):
            for texts in places.texts_of(call):
                parts = {name: _text(each, texts) for name, each in zip(PARTS_OF_INDICES, node.args, strict=True)}
                yield "DataError", (_alternatives(parts["summary"]), "", _alternatives(parts["fix"]))
        if kind in CLASS_ARGUMENTS and any(each.arg in ("given", "fix") for each in node.keywords):
            kind = OF_EVERY_CLASS
        is_problem = has_problems and kind == "Problem" and len(node.args) == len(PARTS_OF_PROBLEM)
        if not node.args or not (is_problem or kind in {*known, *BUILDERS}):
            continue
        for texts in places.texts_of(call):
            parts = {each.arg: _text(each.value, texts) for each in node.keywords}
            parts |= {each.arg: _literal(each.value) for each in node.keywords if each.arg == "example"}
            if kind in BUILDERS:
                yield from _built(kind, node, parts, texts)
                continue
            if is_problem:
                parts = {name: _text(each, texts) for name, each in zip(PARTS_OF_PROBLEM, node.args, strict=True)}
            summary = parts.get("summary") or _text(node.args[0], texts)
            expected, fix = (_alternatives(parts.get(name, "")) for name in ("expected", "fix"))
            if len(re.findall(r"[a-z]{2,}", summary)) > (0 if kind == "UnknownNameError" else 2):
                yield "LayoutError" if is_problem else kind, (_alternatives(summary), expected, fix)


def _alternatives(text: str) -> str:
    """Return a text, or several between slashes, without those of which nothing is known."""
    return " / ".join(each for each in text.split(" / ") if each.strip("… "))


def way_out(expected: str, fix: str) -> str:
    """Return the last cell of a row."""
    return fix or (f"expected: {expected}" if expected else UNKNOWN)


def _built(kind: str, node: ast.Call, parts: Mapping[str | None, str], texts: Texts) -> Iterator[tuple[str, Row]]:
    """Yield the error of a function that makes the text from an argument and what is expected."""
    given = next((each.value for each in node.keywords if each.arg == "error"), None)
    named = _name_of(given) if given else BUILDERS[kind]
    named = OF_EVERY_CLASS if named in CLASS_ARGUMENTS else named
    if kind == "argument_error" and len(node.args) > 2:
        argument, expected = _text(node.args[0], texts), _text(node.args[2], texts)
        wrong, of = parts.get("wrong") or f"must be {expected}", " of layer …" if "layer" in parts else ""
        of = "…" if of and named == OF_EVERY_CLASS else of  # there may be no layer
        default = f"expected: {expected}" if parts.get("wrong") else f"correct `{argument}`, or leave it out"
        if "example" in parts:
            default = f"for example {argument}={parts['example']}" if parts["example"].strip("… /") else ""
        summary, fix = f"`{argument}`{of} {wrong}", _alternatives(parts.get("fix", "")) or default
        if not re.search("[a-z]{3}", wrong.removeprefix("must be ")):
            return
    else:
        fix = parts.get("fix") or "correct the name: the error lists all names"
        summary = f"{_text(node.args[0], texts)} …"
    if named in vars(errors) and re.search("[a-z]{3}", summary):
        yield named, (summary, "", fix)


class _Call:
    """A call in the source, with the texts of names on each path that leads to it."""

    def __init__(self, node: ast.Call, paths: list[Texts], function: ast.AST | None) -> None:
        self.node, self.paths, self.function = node, paths, function


class _Places:
    """The calls of a module, with what names stand for where they are called.

    Names are followed along the branches that lead to a call, so that a message keeps its own way out; parameters of a
    function stand for what the calls of the function in this module pass.
    """

    def __init__(self, tree: ast.Module, constants: Mapping[str, Texts]) -> None:
        self.calls: dict[str, list[_Call]] = defaultdict(list)
        imported = {
            alias.asname or alias.name: texts[alias.name]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (texts := constants.get(node.module or ""))
            for alias in node.names
            if alias.name in texts
        }
        self._walk(tree.body, [{**imported, **_constants(tree)}], None)

    def texts_of(self, call: _Call, depth: int = 0) -> list[Texts]:
        """Return what names stand for on each path to a call, for each caller where it reads parameters."""
        read = {node.id for node in ast.walk(call.node) if isinstance(node, ast.Name)}
        paths = [{name: text for name, text in path.items() if name in read} for path in call.paths]
        if not any(MARK in text for path in paths for text in path.values()):
            return _once(paths)
        callers = self.calls.get(call.function.name, []) if isinstance(call.function, ast.FunctionDef) else []
        bound = [
            _bound(call.function, caller.node, texts)
            for caller in callers
            if depth < MOST_CALLERS and caller.function is not call.function
            for texts in self.texts_of(caller, depth + 1)
        ] or [{}]
        return _once(
            [{name: _filled(text, values) for name, text in path.items()} for path in paths for values in bound]
        )

    def _walk(self, body: Iterable[ast.stmt], paths: list[Texts], function: ast.AST | None) -> list[Texts]:
        """Note the calls of statements, and return what names stand for behind them, on each path."""
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                parameters = {each.arg: f"{MARK}{each.arg}{MARK}" for each in _parameters(node)}
                self._walk(node.body, [{**path, **parameters} for path in paths], node)
                continue
            inner = [each for name in ("body", "orelse", "finalbody") for each in getattr(node, name, [])]
            inner += [*getattr(node, "handlers", []), *getattr(node, "cases", [])]
            self._note(node, inner, paths, function)
            if isinstance(node, ast.If):
                ways = [self._walk(node.body, paths, function), self._walk(node.orelse, paths, function)]
                paths = [path for way in ways for path in way]
            elif isinstance(node, ast.Match):
                ways = [self._walk(case.body, paths, function) for case in node.cases]
                paths = [*paths, *(path for way in ways for path in way)]
            elif isinstance(node, ast.Try):
                after = self._walk(node.body, paths, function)
                caught = [self._walk(each.body, [*paths, *after], function) for each in node.handlers]
                after = self._walk(node.orelse, after, function)
                paths = self._walk(node.finalbody, [*after, *(path for way in caught for path in way)], function)
            elif isinstance(node, ast.For):
                self._walk(node.body, _of_loop(node, paths), function)
                paths = self._walk(node.orelse, paths, function)
            elif isinstance(node, ast.While | ast.With | ast.ClassDef):
                after = self._walk(node.body, paths, function)
                paths = after if isinstance(node, ast.With) else paths
            else:
                paths = [_assigned(node, path) for path in paths]
            paths = _once(paths)[:MOST_PATHS]
            if isinstance(node, ast.Raise | ast.Return | ast.Continue | ast.Break):
                return []
        return paths

    def _note(self, node: ast.stmt, inner: list[Any], paths: list[Texts], function: ast.AST | None) -> None:
        waiting: list[ast.AST] = [node]
        while waiting:
            each = waiting.pop(0)
            if isinstance(each, ast.Call):
                self.calls[_name_of(each.func)].append(_Call(each, paths, function))
            waiting += [child for child in ast.iter_child_nodes(each) if child not in inner]


def _assigned(node: ast.stmt, path: Texts) -> Texts:
    """Return what names stand for after a statement."""
    found = dict(path)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = getattr(node, "value", None)
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        found[node.target.id] = path.get(node.target.id, "…") + _text(node.value, path)
    for target in targets:
        found |= _unpacked(target, value, path)
    return found


def _unpacked(target: ast.AST, value: ast.AST | None, path: Texts) -> dict[str, str]:
    if isinstance(target, ast.Name):
        return {target.id: _text(value, path) if value else "…"}
    if not isinstance(target, ast.Tuple | ast.List):
        return {}
    values: list[Any] = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    values = values if len(values) == len(target.elts) else [None] * len(target.elts)
    return {
        name: text for pair in zip(target.elts, values, strict=True) for name, text in _unpacked(*pair, path).items()
    }


def _of_loop(node: ast.For, paths: list[Texts]) -> list[Texts]:
    """Return what names stand for in each turn of a loop; several turns where it is over a list in the source."""
    values = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else [None]
    return _once([{**path, **_unpacked(node.target, value, path)} for path in paths for value in values])


def _parameters(function: Any) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _bound(function: Any, call: ast.Call, texts: Texts) -> dict[str, str]:
    """Return the texts that a call passes to the parameters of a function."""
    given = function.args
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    defaults = dict(zip(positional[::-1], given.defaults[::-1], strict=False))
    defaults |= {each.arg: value for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
    if positional[:1] in (["self"], ["cls"]):
        positional = positional[1:]
    values = {**defaults, **dict(zip(positional, call.args, strict=False))}
    values |= {each.arg: each.value for each in call.keywords if each.arg}
    return {name: _text(value, texts) for name, value in values.items()}


def _filled(text: str, values: Texts) -> str:
    return re.sub(f"{MARK}(.*?){MARK}", lambda found: values.get(found[1], "…"), text)


def _once(paths: Iterable[Texts]) -> list[Texts]:
    return [*{tuple(sorted(path.items())): path for path in paths}.values()]


def _constants(tree: ast.Module) -> Texts:
    found: Texts = {}
    for node in tree.body:
        found = _assigned(node, found)
    return {name: text for name, text in found.items() if text.strip("… /")}


def _module_of(file: pathlib.Path) -> str:
    return ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def _name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _text(node: ast.AST, texts: Texts) -> str:
    """Return the text of an expression for a cell of a table, with `…` for what only a run can say."""
    if isinstance(node, ast.Constant):
        return _plain(node.value) if isinstance(node.value, str) else "" if node.value is None else "…"
    if isinstance(node, ast.Name):
        return texts.get(node.id, "…")
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each, texts) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return (_part(_text(node.value, texts)) if isinstance(node.value, ast.Name | ast.Call) else "") or "…"
    if isinstance(node, ast.BinOp):
        return _part(_text(node.left, texts)) + _part(_text(node.right, texts))
    if isinstance(node, ast.Call) and _name_of(node.func) == "one_of":
        return "one of …"
    if isinstance(node, ast.BoolOp | ast.IfExp):
        ways = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
        return " / ".join(_text(each, texts) for each in ways)
    return "…"


def _part(text: str) -> str:
    """Return a text for the inside of another one, which has no place for alternatives."""
    return "…" if " / " in text else text


def _literal(node: ast.AST) -> str:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return "…"
    return "" if value is None else _plain(repr(value))


def _plain(text: str) -> str:
    """Return text without markup of Markdown but backticks."""
    for sign in "\\|*_[]<>$":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")
