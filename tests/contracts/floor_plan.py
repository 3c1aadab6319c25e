"""The floor plan of CONTRIBUTING.md, drawn from the import contract: `python -m tests.contracts.floor_plan`."""

import ast
import html
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
FILE = ROOT / "docs" / "floor_plan.svg"
_WIDTH, _ROW, _LEFT, _FLOOR_GAP = 1080, 19, 150, 10
_STYLE = """
text { font: 12px ui-monospace, monospace; fill: #24292f; }
.about { font-family: system-ui, sans-serif; fill: #57606a; }
rect { fill: #f6f8fa; stroke: #d0d7de; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .about { fill: #9198a1; } rect { fill: #151b23; stroke: #3d444d; }
}
"""


def floors() -> list[list[str]]:
    """The packages and modules of each floor, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [re.findall(r"\w+", layer) for layer in layers]


def about(name: str) -> str:
    """The first sentence of the docstring of a package or module."""
    package = ROOT / "keras_dist" / name
    path = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
    return first.partition(". ")[0].rstrip(".")


def picture() -> str:
    """The plan as SVG."""
    y, parts = _FLOOR_GAP, []
    for names in floors():
        shown = [name for name in names if name != "__main__"]
        if not shown:
            continue
        height = _ROW * len(shown) + 8
        parts.append(f'<rect x="4" y="{y}" width="{_WIDTH - 8}" height="{height}" rx="4"/>')
        for row, name in enumerate(shown):
            base = y + _ROW * (row + 1) - 2
            parts.append(f'<text x="14" y="{base}">{name}</text>')
            parts.append(f'<text class="about" x="{_LEFT}" y="{base}">{html.escape(about(name))}</text>')
        y += height + _FLOOR_GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


if __name__ == "__main__":
    FILE.write_text(picture())
