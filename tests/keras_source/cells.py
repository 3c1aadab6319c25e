"""Cells of Keras's guides, with the import swapped and large arrays made small.

They are the statements between the texts, and the blocks of code in the texts as far as they are complete.
"""

import ast
import builtins
import re
import textwrap
from collections.abc import Collection

ROWS = 256
"""What takes the place of more than ten thousand rows."""


def cells_of(source: str) -> list[tuple[int, str]]:
    """Return the first line and the text of each run of statements between two texts."""
    lines = source.splitlines()
    cells: list[list[ast.stmt]] = [[]]
    for node in ast.parse(source).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            cells.append([])
        else:
            cells[-1].append(node)
    found = []
    for cell in filter(None, cells):
        begin = min([cell[0].lineno, *(one.lineno for one in getattr(cell[0], "decorator_list", ()))])
        found.append((begin, "\n".join(lines[begin - 1 : cell[-1].end_lineno])))
    return found


def blocks_of(source: str) -> list[tuple[int, str]]:
    """Return the first line and the text of each block of Python in the texts."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
            for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
                found.append((node.lineno + text[: block.start(1)].count("\n"), textwrap.dedent(block[1])))
    return found


def complete(text: str, known: Collection[str]) -> str:
    """Return the statements of a block without `...` whose names are defined: in the block before, or `known`."""
    kept, names = [], {*known, *dir(builtins)}
    for statement in ast.parse(text).body:
        elided = any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(statement))
        read, bound = _names_in(statement)
        if not elided and read <= names | bound:
            kept.append(statement)
            names |= bound
    return "\n".join(ast.unparse(statement) for statement in kept)


def _names_in(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """The names that a statement reads, also in functions that it defines, and those that it binds."""
    read, bound = set(), set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
    return read, bound


def swapped(source: str) -> str:
    """Return the text with the import of Keras swapped."""
    source = re.sub(r"^(\s*)import keras$", r"\1import keras_dist as keras", source, flags=re.MULTILINE)
    source = re.sub(r"^(\s*)import keras(?=\s*#)", r"\1import keras_dist as keras", source, flags=re.MULTILINE)
    return re.sub(r"^(\s*)from keras(?=[. ])", r"\1from keras_dist", source, flags=re.MULTILINE)


def shrunk(source: str) -> str:
    """Return the text with fewer rows, and without weights that would be downloaded."""
    source = re.sub(r"(?<=random\(\()\d{5,}(?=,)", str(ROWS), source)
    source = re.sub(r"(?<=\[)(:?)-\d{5}(:?)(?=\])", r"\1-64\2", source)
    source = re.sub(r"(?<=reshape\()\d{5}(?=,)", "-1", source)
    source = re.sub(r"""weights=["']imagenet["']""", "weights=None", source)
    return re.sub(r"(?<=applications\.VGG19\()(?=\))", "weights=None", source)
