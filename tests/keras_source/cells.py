"""Cells of Keras's guides: the statements between the texts, with the import swapped and large arrays made small."""

import ast
import re

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
