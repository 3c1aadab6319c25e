"""Nothing of the package unpickles, evaluates or imports what it reads, least of all what other processes say."""

import ast
import re
from pathlib import Path

import keras_dist

PACKAGE = Path(keras_dist.__file__).parent

FUNCTIONS = {"eval", "exec", "compile", "__import__"}
MODULES = {
    *("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"),
    *("code", "ctypes", "importlib", "runpy", "subprocess", "multiprocessing"),
}
ATTRIBUTES = {"np.load", "numpy.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen", "types.FunctionType"}

KNOWN = {
    "__init__.py": {"importlib"},  # the package's own packages, when they are first used
    "_coordination_service.py": {"subprocess"},  # starts itself
    "_environment.py": {"ctypes"},  # the C library's malloc_trim
    "_extras.py": {"importlib"},  # extras by names that stand in the package
    "_not_here.py": {"importlib"},  # the package's own modules, for names that Keras has in lower packages
    "assembly/components.py": {"importlib"},  # import paths of the user's own run file, when the run is built
    "cli/local_process.py": {"subprocess"},  # starts the user's script
    "cli/process_tree.py": {"ctypes"},  # the C library's prctl
    "_shardy.py": {"subprocess"},  # starts the program beside it
    "planner/compiled.py": {"subprocess"},  # starts the module beside it
    "_gloo.py": {"ctypes"},  # the standard output of C++
    "checkpoint/snapshot.py": {"importlib"},  # versions of packages
    "config/__init__.py": {"importlib"},  # its own loader
    "config/formats.py": {"yaml.load"},  # with a SafeLoader
    "datasets/__init__.py": {"importlib"},  # the package's own modules
    "export/writing.py": {"importlib"},  # versions of packages
    "initializers/fourier_kernels.py": {"importlib"},  # scipy.signal, which takes long to load
    "saving/serialization.py": {"importlib", "marshal", "types.FunctionType"},  # lambdas need safe_mode=False
    "saving/vocabulary.py": {"importlib"},  # the package's own packages
}


def dangers(path: Path) -> set[str]:
    """What a file uses of what runs or imports something."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & FUNCTIONS
        elif isinstance(node, ast.Attribute):
            found |= {ast.unparse(node)} & ATTRIBUTES
    return found


def test_the_places_that_run_or_import_something_are_known():
    files = {path.relative_to(PACKAGE).as_posix(): dangers(path) for path in PACKAGE.rglob("*.py")}
    assert {name: used for name, used in files.items() if used} == KNOWN


def test_what_other_processes_say_is_read_as_json():
    reads = re.compile(r"\.(blocking_)?key_value_\w*get\w*\(")
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    readers = {name for name, text in texts.items() if reads.search(text)}
    readers.remove("distribution/job_warnings.py")  # waits for a key, and does not look at its value
    assert readers == {f"distribution/{name}.py" for name in ("joining", "liveness", "rendezvous")}
    assert all("json.loads(" in texts[name] and name not in KNOWN for name in readers)
