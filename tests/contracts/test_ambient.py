"""Ambient state is in one file, and each part of it has a reason."""

import ast
import itertools
import re
import threading
from pathlib import Path

import keras_dist as kd
from keras_dist._support import ambient
from keras_dist.distribution import tracing
from keras_dist.distribution.abstract import abstract_meshes, planned_platform

PACKAGE = Path(kd.__file__).parent
FILE = PACKAGE / "_support/ambient.py"
MOST = 10

CACHES = {("_unstable/jax_runtime.py", "_is_forked"): "noted once, by the child of a fork; no other code sets it"}
"""Names of `global` statements, by file, and why they are module-level: facts that are found once."""


def trees():
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if "global " in text or "ContextVar" in text:
            yield path, ast.parse(text)


def name_of(node):
    return ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]


def makes_context_variable(node):
    return isinstance(node, ast.Call) and name_of(node) == "ContextVar"


def test_all_context_variables_are_in_one_file():
    found = {path for path, tree in trees() if any(map(makes_context_variable, ast.walk(tree)))}
    assert found == {FILE}


def test_each_context_variable_says_what_it_is_who_sets_it_and_why():
    body = ast.parse(FILE.read_text()).body
    made = [(one, after) for one, after in itertools.pairwise(body) if makes_context_variable(getattr(one, "value", 0))]
    assert 0 < len(made) <= MOST
    assert FILE.read_text().count("ContextVar(") == len(made), "context variables are made at the top of the file"
    for variable, after in made:
        sentence = getattr(getattr(after, "value", None), "value", None)
        assert isinstance(sentence, str), ast.unparse(variable)
        assert re.fullmatch(r"[A-Z].*enter\w*\b.*: .+\.", sentence), sentence


def test_global_statements_are_of_caches():
    statements = [(path, node) for path, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Global)]
    found = {(path.relative_to(PACKAGE).as_posix(), name) for path, node in statements for name in node.names}
    assert found == set(CACHES)


def test_settings_of_the_process_say_who_sets_them():
    lines = FILE.read_text().partition("class Process:")[2].splitlines()
    fields = [line for line in lines if re.match(r" {4}\w+: ", line)]
    assert len(fields) == len(vars(ambient.process))
    assert all(re.search(r"  # \w", field.replace("`", "")) for field in fields)


def test_fields_of_a_record_change_one_by_one():
    outer = tracing.without_kernels()  # made before the other begins, and entered inside
    with abstract_meshes("tpu"), tracing.kernels_noted() as notes:
        with outer:
            assert planned_platform() == "tpu" and not tracing.may_use_kernels()
            tracing.note_kernel("attention")
        assert planned_platform() == "tpu" and tracing.may_use_kernels()
    assert notes == {"attention": None} and planned_platform() is None


def test_threads_share_the_settings_of_the_process_and_no_scope():
    def seen():
        found = []
        thread = threading.Thread(target=lambda: found.append((kd.distribution.distribution(), planned_platform())))
        thread.start()
        thread.join()
        return found[0]

    mesh = kd.DeviceMesh({"batch": 1}, devices=kd.distribution.list_devices()[:1])
    default, scoped = kd.DataParallel(mesh), kd.DataParallel(mesh)
    kd.distribution.set_distribution(default)
    try:
        with scoped.scope(), abstract_meshes("tpu"):
            assert kd.distribution.distribution() is scoped
            assert seen() == (default, None)
    finally:
        kd.distribution.set_distribution(None)
