"""Every public name is on a page of the reference, and has an example or a reason for having none.

`python -m tests.documents.coverage` prints what is missing, and how many names have what.
"""

import ast
import collections
import dataclasses
import doctest
import inspect
import json
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterator

from docs.generate import api, names

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE, REASON, MISSING, NO_PAGE = "an example", "a reason", "no example and no reason", "no page"

AS_IN_KERAS = "arguments and values of Keras's name, where KERAS.md does not say otherwise"
RETURNED = "a value that others return, whose attributes are in its docstring"
_OF_KERAS = """
activations backend callbacks constraints dtype_policies initializers layers losses metrics
mixed_precision ops optimizers preprocessing random regularizers saving tree utils visualization
"""
OF_PACKAGES = {
    "config": "a table of config files: the page of config files has its keys, and examples/ has files",
    "datasets": "downloads, or reads what a download left",
    "dtensor": "docs/migrating.md has it in a table, beside the name of TensorFlow",
    "errors": "the index of errors has the places that raise it",
    "pretrained.families": "a family of networks, which `config.json` names; CONTRIBUTING adds one",
}
OF_PACKAGES |= dict.fromkeys(_OF_KERAS.split(), AS_IN_KERAS)
"""Reasons for having no example, by package: most of their names are Keras's, and so are the examples."""

OF_NAMES = {
    "a step of `keras-dist train`, which the page Beyond Keras takes with `kd.assembly.build`": """
        assembly.distribution_of assembly.imported assembly.plan_inputs assembly.train""",
    AS_IN_KERAS: """
        KerasTensor device models.model_from_json models.save_model name_scope version
        data.array_to_img data.image_dataset_from_directory data.img_to_array data.load_img data.normalize
        data.save_img data.text_dataset_from_directory""",
    "a base class of data sources; CONTRIBUTING has a source, and names when which base fits": """
        data.LookupSource data.RowSource data.StreamSource""",
    "needs a job of several processes": """
        data.ShardPolicy data.ShareRows data.global_batch data.replica_group data.replica_groups data.shard_batch
        data.share_rows distribution.is_chief distribution.process_index""",
    "a transformation of `WeightMap`, as `Linear` in its example": "interop.Permute interop.Reshape",
    "a part of a network that `pretrained.load` makes": """
        pretrained.Cache pretrained.CachedModel pretrained.Encoder pretrained.Family""",
    "a step of `kd.plan`, whose example is its own": "planner.figures planner.target_of planner.trace_step",
    RETURNED: "checkpoint.Stored data.BatchedDataset export.ExportedProgram planner.DimClasses",
}
"""Reasons for having no example, with the names. Dataclasses need none: their docstrings list the fields."""


def outcome(each: names.Name, pages: set[str], used: set[str]) -> str:
    """Return what a public name has; `pages` are the names that the reference documents."""
    if each.canonical not in pages:
        return NO_PAGE
    spellings = {other.full.removeprefix("keras_dist.") for other in names.names() if other.canonical == each.canonical}
    if has_example(each.value) or used & spellings:
        return EXAMPLE
    name = each.canonical.removeprefix("keras_dist.")
    is_known = any(name in listed.split() for listed in OF_NAMES.values())
    is_record = dataclasses.is_dataclass(each.value)
    return (
        REASON if is_known or is_record or any(name.startswith(f"{package}.") for package in OF_PACKAGES) else MISSING
    )


def has_example(value: object) -> bool:
    """Return whether the docstring, or one of a member, has an example that runs as a test."""
    texts = [inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        texts += [inspect.getdoc(getattr(value, name)) or "" for name in names.members(value)]
    return any(">>> " in text for text in texts)


def used_names() -> set[str]:
    """Return dotted names in the code of documents, notebooks, examples and docstrings: `layers.Dense`, `Model`."""
    return {name for code in programs() for name in _dotted(code)}


def programs() -> Iterator[str]:
    """Yield all code that is shown and run."""
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        if "generated" not in document.parts:
            found = re.findall(r"^ *```python\n(.*?)^ *```", document.read_text(), re.DOTALL | re.MULTILINE)
            yield from map(textwrap.dedent, found)
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for script in [*(ROOT / "examples").glob("*.py"), *(ROOT / "deploy").glob("*.py")]:
        yield script.read_text()
    parser = doctest.DocTestParser()
    for each in names.names():
        yield "".join(example.source for example in parser.get_examples(inspect.getdoc(each.value) or ""))


def _dotted(code: str) -> Iterator[str]:
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a notebook's magic
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_path(node):
            yield re.sub(r"^(kd|keras|keras_dist)\.", "", ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras_dist"):
            package = (node.module or "").removeprefix("keras_dist").removeprefix(".")
            yield from (f"{package}.{alias.name}".removeprefix(".") for alias in node.names)


def _is_path(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_path(node.value))


def outcomes() -> dict[str, list[str]]:
    """Return the public names by what they have."""
    entries = r"^\.\. (?:auto\w+|py:data):: (\S+)$"
    pages, used = {*re.findall(entries, "\n".join(api.pages().values()), re.MULTILINE)}, used_names()
    found: dict[str, list[str]] = collections.defaultdict(list)
    for each in names.names():
        found[outcome(each, pages, used)].append(each.full)
    return found


def main() -> int:
    """Print what names have, and return 1 if one lacks something."""
    found = outcomes()
    print(", ".join(f"{len(found[kind])} {kind}" for kind in (EXAMPLE, REASON, MISSING, NO_PAGE)))
    for kind in (NO_PAGE, MISSING):
        print("".join(f"{kind}: {name}\n" for name in found[kind]), end="")
    return int(bool(found[MISSING] or found[NO_PAGE]))


if __name__ == "__main__":
    sys.exit(main())
