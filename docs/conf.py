"""Sphinx settings of the site: `make docs`. The source folder is the repository, so that links work there and here."""

import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import keras_dist as kd  # noqa: E402
from docs.generate import api, cli, docstrings, errors, schema  # noqa: E402

project, author = "keras_dist", "The keras_dist authors"
version = release = kd.__version__
project_copyright = "The keras_dist authors, Apache-2.0"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "notebooks/*.ipynb",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "keras_dist/KERAS.md",
    "benchmarks/README.md",
]
exclude_patterns = [".*", "tests", "examples", "deploy", "build", "dist", "docs/generate"]
nitpicky = True
nitpick_ignore_regex = [(r"py:(class|exc|meth|attr|func|data)", r".*")]  # types in signatures, of JAX for example
suppress_warnings = [
    "ref.python",
    "toc.empty_glob",
]  # the first: a type in a signature that several classes have as an attribute

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # their outputs are kept, and tests/test_notebooks.py runs them
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"  # the margin of a page has room for `on_epoch_end()`, not for its class
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Warns", "params_style")]

html_theme = "sphinx_book_theme"
html_title = "keras_dist"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["filter_tables.js"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 1,  # classes; the members of the one in view unfold
    "home_page_in_toc": True,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

GENERATED = ROOT / "docs" / "reference" / "generated"
FORWARD = '<!doctype html><title>keras_dist</title><meta http-equiv="refresh" content="0; url={}">'
FORWARDED = {"index.html": "docs/index.html", "docs/start/pretrained.html": "../../notebooks/pretrained.html"}
"""Pages that lead to another one: the folder of the site, and addresses of pages that moved."""


def write_pages(*_: Any) -> None:
    """Write the generated pages; those whose text is the same keep their dates, so that Sphinx does not read them."""
    GENERATED.mkdir(exist_ok=True)
    pages = {**api.pages(), **cli.pages(), **schema.pages(), **errors.pages()}
    for path in {path.name for path in GENERATED.iterdir()} - {*pages}:
        (GENERATED / path).unlink()
    for path, text in pages.items():
        if not (GENERATED / path).exists() or (GENERATED / path).read_text() != text:
            (GENERATED / path).write_text(text)


def convert(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrite a docstring in place before napoleon does."""
    package = max(
        (each for each in docstrings.names.packages() if name.startswith(f"{each}.")), key=len, default="keras_dist"
    )
    lines[:] = docstrings.as_rst(lines, package)


def write_forwards(app: Any, error: Exception | None) -> None:
    """Write the pages that lead to another one."""
    for page, target in FORWARDED.items():
        (pathlib.Path(app.outdir) / page).write_text(FORWARD.format(target))


def setup(app: Any) -> None:
    """Write pages before Sphinx looks for them, and those that lead to others when it is done."""
    app.connect("config-inited", write_pages)
    app.connect("autodoc-process-docstring", convert, priority=400)
    app.connect("build-finished", write_forwards)
