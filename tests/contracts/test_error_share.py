"""Building errors takes few lines, so that functions show what they do.

`python -m tests.contracts.test_error_share` prints the share of each room.
"""

import ast
import builtins
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "keras_dist"

BUDGET = 0.057
"""Largest share of code lines that may build errors; lower it when it is reached."""

_PARTS = {"given", "expected", "fix"}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def counted(source: str) -> tuple[int, int]:
    """Return the number of lines that build errors, and of all code lines.

    A code line is not blank, not a comment, and not part of a docstring. A line builds an error if it belongs to the
    call of a `raise` statement, except a call of one of Python's own exceptions; or to a call with an argument
    `given`, `expected` or `fix`; or to an assignment right before such a statement, of names that the call gets. An
    `if` on a line of its own does not count.
    """
    tree = ast.parse(source)
    documentation: set[int] = set()
    errors: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documentation |= _lines(node.body[0])
        if isinstance(node, ast.Call) and _PARTS & {keyword.arg for keyword in node.keywords}:
            errors |= _lines(node)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            errors |= set() if _is_python_s(node.exc) else _lines(node.exc)
        for name in ("body", "orelse", "finalbody"):
            errors |= _parts_before(getattr(node, name, []))
    lines = enumerate(source.splitlines(), 1)
    code = {number for number, line in lines if line.strip() and not line.lstrip().startswith("#")}
    code -= documentation
    return len(errors & code), len(code)


def by_room() -> dict[str, tuple[int, int]]:
    """Return the number of lines that build errors, and of code lines, for each room."""
    errors: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        own = counted(path.read_text())
        errors[room] += own[0]
        code[room] += own[1]
    return {room: (errors[room], code[room]) for room in code}


def _parts_before(statements: object) -> set[int]:
    """The lines of assignments to names that the error of the next statement gets."""
    lines: set[int] = set()
    names: set[str] = set()
    for statement in reversed(statements if isinstance(statements, list) else []):
        call = statement.exc if isinstance(statement, ast.Raise) else getattr(statement, "value", None)
        if isinstance(call, ast.Call) and (
            _PARTS & {keyword.arg for keyword in call.keywords}
            or (isinstance(statement, ast.Raise) and not _is_python_s(call))
        ):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            names = {value.id for value in given if isinstance(value, ast.Name)}
        elif isinstance(statement, ast.Assign) and _targets(statement) <= names:
            lines |= _lines(statement)
        else:
            names = set()
    return lines


def _targets(statement: ast.Assign) -> set[str]:
    return {node.id if isinstance(node, ast.Name) else "" for target in statement.targets for node in _each(target)}


def _each(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple) else [target]


def _is_python_s(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id)


def _lines(node: ast.expr | ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


@pytest.mark.slow
def test_the_share_of_errors_is_within_its_budget():
    counts = by_room()
    share = sum(errors for errors, _ in counts.values()) / sum(code for _, code in counts.values())
    assert share <= BUDGET, f"{share:.2%} of the code builds errors; keras_dist._support.arguments has shorter ways"


if __name__ == "__main__":
    rooms = by_room()
    rooms["all"] = (sum(errors for errors, _ in rooms.values()), sum(code for _, code in rooms.values()))
    for name, (errors, code) in rooms.items():
        print(f"{name:<28}{errors:>6}{code:>7}{errors / code:>7.1%}")
