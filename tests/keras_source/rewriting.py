"""Rewrites Keras's tests mechanically, and tells why a test does not count."""

import ast
import functools
import re

from tests.keras_source.modules import OTHERS, PACKAGE

CAUSES = ("tensorflow", "quantization", "internals", "failed")
"""Why a test did not pass, the first that is true; `failed` alone counts against keras_dist."""

QUANTIZATION = re.compile(r"quanti[sz]|gptq|awq|float8|int4|AbsMax", re.IGNORECASE)
TENSORFLOW = re.compile(
    r"No module named '(tensorflow|torch|tf2onnx|openvino|jax2tf|litert|ai_edge|tf_keras)|requires? (the )?"
    r"`?(tensorflow|torch|litert|onnx)|keras\.src\.[\w.]*(tensorflow|torch|openvino)|format='tf_saved_model'",
    re.IGNORECASE,
)
MOCKED = re.compile(r"AttributeError: .* does not have the attribute '")
"""What `unittest.mock` says of a method that a test would replace, to see that Keras's own code calls it."""

_IMPORT = re.compile(r"^(\s*(?:from|import)\s+)keras(?=[.\s])", re.MULTILINE)
_BARE_IMPORT = re.compile(rf"^(\s*import {PACKAGE})(?=\s*(?:#.*)?$)", re.MULTILINE)
_OTHER = re.compile(r"^(from|import) (?=(?:tensorflow|torch)\b)", re.MULTILINE)
_BARE_OTHER = re.compile(rf"^(import {OTHERS}\.(\w+))(?=\s*(?:#.*)?$)", re.MULTILINE)
_NAME_IN_TEXT = re.compile(r"(?<=[\"'])keras\.src(?=[.\"'])")


def rewrite(source: str) -> str:
    """Return a module's text with `as_keras` where it imports `keras`, or names `keras.src` in a string.

    What it imports of TensorFlow or torch for all of its tests fails in those that use it.
    """
    source = _BARE_OTHER.sub(r"\1 as \2", _OTHER.sub(rf"\1 {OTHERS}.", source))
    source = _IMPORT.sub(rf"\1{PACKAGE}", source)
    source = _BARE_IMPORT.sub(r"\1 as keras", source)
    return _NAME_IN_TEXT.sub(f"{PACKAGE}.src", source)


class Module:
    """What the tests of one module use.

    Args:
        source: the module's text.
    """

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.top = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        self.own = {node.attr for node in ast.walk(self.tree) if _is_stored(node)} | {
            node.name for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }

    def count(self) -> int:
        """How many tests are written; those with parameters are more."""
        return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in ast.walk(self.tree))

    @functools.lru_cache  # noqa: B019 - as long as the module's tests
    def nodes_of(self, name: str) -> tuple[ast.AST, ...]:
        """The definition of a test `Class::test_name_parameters`, and all of the module that it uses."""
        label, _, method = name.partition("::")
        waiting: list[ast.AST] = []
        owner = self.top.get(label)
        methods = {}
        if isinstance(owner, ast.ClassDef):
            methods = {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}
            waiting += [methods[one] for one in ("setUp",) if one in methods]
        else:
            method = label
            methods = {name: node for name, node in self.top.items() if isinstance(node, ast.FunctionDef)}
        of_this = max((name for name in methods if method.startswith(name)), key=len, default=None)
        if of_this is not None:
            waiting.append(methods[of_this])
        seen: list[ast.AST] = []
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.append(node)
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and part.id in self.top and part.id != label:
                    waiting.append(self.top[part.id])
                elif isinstance(part, ast.Attribute) and _is_self(part.value) and part.attr in methods:
                    waiting.append(methods[part.attr])
        return tuple(seen)

    def private_names(self, name: str) -> set[str]:
        """Names beginning with `_` that a test uses, or replaces, in objects whose classes are not in its module."""
        used = {_used(part) for node in self.nodes_of(name) for part in ast.walk(node)}
        return {one for one in used if one.startswith("_") and not one.startswith("__") and one not in self.own}

    def patches(self, name: str) -> bool:
        """Whether a test puts a mock in the place of a function in Keras's modules."""
        calls = (part for node in self.nodes_of(name) for part in ast.walk(node) if isinstance(part, ast.Call))
        patched = (call.args[0] for call in calls if getattr(call.func, "attr", "") == "patch" and call.args)
        return any(isinstance(name, ast.Constant) and "keras.src." in str(name.value) for name in patched)

    def mentions(self, name: str, pattern: re.Pattern[str]) -> bool:
        """Whether the body of a test, without what it calls, has a word that a pattern finds."""
        found = self.nodes_of(name)
        return any(pattern.search(ast.unparse(node)) for node in found if getattr(node, "name", "").startswith("test"))


def classify(file: str, name: str, error: str, tests: Module) -> str:
    """Return why a test failed, one of `CAUSES`.

    Args:
        file: its module, `layers/core/dense_test.py`.
        name: `DenseTest::test_call`.
        error: the text of its failure.
        tests: those of the module.
    """
    if TENSORFLOW.search(error):
        return "tensorflow"
    if QUANTIZATION.search(file) or tests.mentions(name, QUANTIZATION):
        return "quantization"
    if re.search(r"MissingError: keras\.(quantizers|.*(quanti|Quanti|GPTQ|AWQ))", error):
        return "quantization"
    if "InternalsError" in error or MOCKED.search(error) or tests.private_names(name) or tests.patches(name):
        return "internals"
    return "failed"


def _used(node: ast.AST) -> str:
    """The attribute that a part of a test uses: `x.attribute`, `hasattr(x, "attribute")`; `patch.object` sets it."""
    functions = ("getattr", "hasattr", "patch.object")
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(functions) and len(node.args) > 1:
        return str(getattr(node.args[1], "value", ""))
    return getattr(node, "attr", "")


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
