"""Nothing of the package unpickles, evaluates or imports what it reads, least of all what other processes say."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import keras_dist

PACKAGE = Path(keras_dist.__file__).parent

NEVER = {
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve", "codeop", "runpy"),
    *("eval", "exec", "__import__", "FunctionType", "CodeType", "allow_pickle", "read_pickle", "to_pickle"),
}
"""What nothing in the package imports, names or passes on, whatever comment stands beside it."""

MODULES = {"ctypes", "importlib", "subprocess", "multiprocessing"}
ATTRIBUTES = {"np.load", "numpy.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}

KNOWN = {
    "__init__.py": {"importlib"},  # the package's own packages, when they are first used
    "_unstable/coordination_service.py": {"subprocess"},  # starts itself
    "_support/backend_environment.py": {"ctypes"},  # the C library's malloc_trim
    "_support/extras.py": {"importlib"},  # extras by names that stand in the package
    "_support/missing_names.py": {"importlib"},  # the package's own modules, for names that Keras has in lower packages
    "assembly/components.py": {"importlib"},  # import paths of the user's own run file, when the run is built
    "cli/local_process.py": {"subprocess"},  # starts the user's script
    "cli/process_tree.py": {"ctypes"},  # the C library's prctl
    "_unstable/shardy.py": {"subprocess"},  # starts the program beside it
    "planner/compilers.py": {"subprocess"},  # starts the module beside it
    "_unstable/gloo.py": {"ctypes"},  # what C++ calls before it aborts
    "checkpoint/snapshot.py": {"importlib"},  # versions of packages
    "config/formats.py": {"yaml.load"},  # with a SafeLoader
    "datasets/__init__.py": {"importlib"},  # the package's own modules
    "export/writing.py": {"importlib"},  # versions of packages
    "initializers/fourier_kernels.py": {"importlib"},  # scipy.signal, which takes long to load
    "serialization/object_configs.py": {"importlib"},  # the package's own packages
    "serialization/object_registry.py": {"importlib"},  # the package's own packages
}


def dangers(path: Path) -> set[str]:
    """What a file uses of what runs or imports something."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        found |= forbidden(node)
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & MODULES
        elif isinstance(node, ast.Attribute):
            found |= {ast.unparse(node)} & ATTRIBUTES
    return found


def forbidden(node: ast.AST) -> set[str]:
    """What a node of a program has of `NEVER`; and of `compile`, where it is Python's."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        return {part for module in modules for part in module.split(".")} & NEVER
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return {node.func.id} & {"compile"}
    if isinstance(node, ast.Name):
        return {node.id} & NEVER
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "builtins":
        return {node.attr} & (NEVER - {"eval"})  # of a module it sets the mode
    if isinstance(node, ast.Attribute):
        return {node.attr} & (NEVER | {"compile"})
    if isinstance(node, ast.keyword):
        return {node.arg} & NEVER
    return {node.value} & NEVER if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_the_places_that_run_or_import_something_are_known():
    files = {path.relative_to(PACKAGE).as_posix(): dangers(path) for path in PACKAGE.rglob("*.py")}
    assert {name: used for name, used in files.items() if used} == KNOWN


@pytest.mark.parametrize(
    "line",
    [
        "import marshal  # noqa: TID251",
        "from pickle import loads  # noqa",
        "import torch.serialization.pickle",
        "run = eval  # noqa: S307",
        "builtins.exec(text)",
        "compile(text, 'file', 'exec')",
        "importlib.import_module('cloudpickle')",
        "np.memmap(file, allow_pickle=True)",
        "types.FunctionType(made, {})",
    ],
)
def test_what_is_never_used_is_found(line):
    assert any(forbidden(node) for node in ast.walk(ast.parse(line)))


def test_no_comment_lets_the_linter_pass_over_it():
    texts = (path.read_text() for path in PACKAGE.rglob("*.py"))
    silenced = re.findall(r"noqa:?(?:[^\n#]*\b(?:S102|S30[127]|TID251|S|TID)\b|\s*$)", "\n".join(texts), re.MULTILINE)
    assert not silenced
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    ours = {code for files, codes in settings["per-file-ignores"].items() if "keras_dist" in files for code in codes}
    assert not ours & {"S", "S1", "S3", "S102", "S301", "S302", "S307", "TID", "TID251"}


def test_what_other_processes_say_is_read_as_json():
    reads = re.compile(r"\.(blocking_)?key_value_\w*get\w*\(")
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    readers = {name for name, text in texts.items() if reads.search(text)}
    assert readers == {f"jobs/{name}.py" for name in ("joining", "heartbeat", "rendezvous")}
    assert all("json.loads(" in texts[name] and name not in KNOWN for name in readers)
