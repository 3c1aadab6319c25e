"""What Keras's tests use and Keras does not export: its `testing`, questions about the backend, trees."""

import contextlib
import os
import shutil
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import keras_dist as kd
from keras_dist.saving import registry
from tests.keras_source import test_case
from tests.keras_source.modules import PACKAGE, Absent


def compute_output_spec(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of what a function gives for symbolic tensors, whose unknown dims are guessed twice."""

    if isinstance(function, kd.Layer):
        return function(*args, **kwargs)

    def traced(size: int) -> Any:
        def as_struct(leaf: Any) -> Any:
            if isinstance(leaf, kd.KerasTensor):
                return jax.ShapeDtypeStruct([size if dim is None else dim for dim in leaf.shape], leaf.dtype)
            return leaf

        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = {i: as_struct(leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, kd.KerasTensor)}

        def call(arrays: dict[int, Any]) -> Any:
            a, k = jax.tree.unflatten(structure, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
            return function(*a, **k)

        return jax.eval_shape(call, arrays)

    def merge(one: Any, other: Any) -> Any:
        return kd.KerasTensor([a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)], one.dtype)

    return jax.tree.map(merge, traced(83), traced(89))


def get_keras_mask(tensor: Any) -> Any:
    """The mask of a tensor."""
    return getattr(tensor, "_keras_mask", None)


def set_keras_mask(tensor: Any, mask: Any) -> None:
    """Give a tensor a mask."""
    tensor._keras_mask = mask


def is_shape(value: Any) -> bool:
    """Whether a value is a shape."""
    return isinstance(value, list | tuple) and all(size is None or isinstance(size, int) for size in value)


def flatten(tree: Any) -> list[Any]:
    """The leaves of a tree; None is one."""
    return jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)


def map_structure(function: Any, *trees: Any) -> Any:
    """A tree of what a function gives for the leaves of trees; None is a leaf."""
    return jax.tree.map(function, *trees, is_leaf=lambda leaf: leaf is None)


def map_structure_up_to(shallow: Any, function: Any, *trees: Any) -> Any:
    """The same, for the leaves of the first tree and what the others have in these places."""
    structure = jax.tree.structure(shallow, is_leaf=lambda leaf: leaf is None)
    results = [function(*leaves) for leaves in zip(*(structure.flatten_up_to(tree) for tree in trees), strict=True)]
    return structure.unflatten(results)


def map_shape_structure(function: Any, tree: Any) -> Any:
    """The same for shapes as leaves."""
    return jax.tree.map(function, tree, is_leaf=is_shape)


def assert_same_structure(one: Any, other: Any) -> None:
    """Raise ValueError where two trees differ."""
    if jax.tree.structure(map_structure(lambda _: 0, one)) != jax.tree.structure(map_structure(lambda _: 0, other)):
        raise ValueError(f"{one} and {other} are nested differently")


def pack_sequence_as(tree: Any, flat: Any) -> Any:
    """A tree of other leaves."""
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=lambda leaf: leaf is None), flat)


TREE = {
    f"keras.tree.{function.__name__}": function
    for function in (
        flatten,
        map_structure,
        map_structure_up_to,
        map_shape_structure,
        assert_same_structure,
        pack_sequence_as,
    )
}


class Trainer(kd.Model):
    """What a test mixes with a layer: a model whose `call` and weights are the layer's."""

    def __init__(self) -> None:
        """Do nothing: the layer is made already."""

    @property
    def layers(self) -> Any:
        """What the test has assigned, which models do not allow, but layers do; else the layers."""
        return vars(self).get("assigned", kd.Model.layers.fget(self))

    @layers.setter
    def layers(self, layers: Any) -> None:
        self.assigned = layers

    def __init_subclass__(cls, **kwargs: Any) -> None:
        mixed = [base for base in cls.__bases__ if not issubclass(base, Trainer) and base is not kd.Layer]
        for base in mixed:
            for name in ("call", "build", "weight_initializers"):
                if name not in vars(cls):
                    setattr(cls, name, getattr(base, name))
        super().__init_subclass__(**kwargs)


FILES = {
    "join": os.path.join,
    "exists": os.path.exists,
    "isdir": os.path.isdir,
    "listdir": os.listdir,
    "remove": os.remove,
    "makedirs": os.makedirs,
    "copy": shutil.copy,
    "File": open,
}
FILES_OF_MODELS = {
    "load_model": kd.saving.load_model,
    "load_weights_only": kd.saving.load_weights,
    "save_model": lambda model, filepath, weights_format="h5", zipped=True: kd.saving.save_model(
        model, filepath, zipped=zipped and None
    ),
    "save_weights_only": lambda model, filepath, max_shard_size=None, objects_to_skip=None: kd.saving.save_weights(
        model, filepath, max_shard_size=max_shard_size, objects_to_skip=objects_to_skip
    ),
}
"""What `keras.saving` exports, by the names that tests of Keras call it inside of the library."""

BACKEND = {
    "backend": lambda: "jax",
    "SUPPORTS_SPARSE_TENSORS": True,
    "SUPPORTS_RAGGED_TENSORS": False,
    "SUPPORTS_COMPLEX_DTYPES": True,
    "IS_THREAD_SAFE": True,
    "compute_output_spec": compute_output_spec,
    "get_keras_mask": get_keras_mask,
    "set_keras_mask": set_keras_mask,
    "random_seed_dtype": lambda: "uint32",
    "standardize_shape": lambda shape: tuple(shape),
    "is_tensor": lambda value: isinstance(value, jax.Array),
    "convert_to_tensor": lambda value, dtype=None, sparse=None: jnp.asarray(value, dtype),
}


def stand_ins() -> dict[str, Any]:
    """Values by full names, as `modules.install` takes them."""
    testing = types.ModuleType("testing")
    vars(testing).update(TestCase=test_case.TestCase, test_case=test_case, test_utils=test_case)
    for system in ("", "jax_", "tensorflow_", "torch_"):
        vars(testing).update({f"{system}uses_{device}": lambda: False for device in ("gpu", "tpu")})
    vars(test_case).update({name: value for name, value in vars(testing).items() if "uses" in name})
    for name in ("", ".test_case", ".test_utils"):
        sys.modules[f"{PACKAGE}.src.testing{name}"] = test_case if name else testing
    sys.modules["conftest"] = types.ModuleType("conftest")
    vars(sys.modules["conftest"])["skip_if_backend"] = lambda backend, reason: pytest.mark.skipif(
        backend == "jax", reason=reason
    )
    return {
        **{f"keras.src.backend.{name}": value for name, value in BACKEND.items()},
        "keras.backend.backend": BACKEND["backend"],
        "keras.config.backend": BACKEND["backend"],
        **{f"keras.src.utils.file_utils.{name}": value for name, value in FILES.items()},
        **{
            f"keras.src.utils.module_utils.{name}": Absent(ModuleNotFoundError, f"No module named '{name}'")
            for name in ("tensorflow", "torch")
        },
        "keras.src.models.functional.Functional": kd.Model,
        "keras.src.saving.object_registration.GLOBAL_CUSTOM_NAMES": registry._names,
        **{f"keras.src.saving.saving_lib.{name}": function for name, function in FILES_OF_MODELS.items()},
        "keras.src.backend.jax.trainer.JAXTrainer": Trainer,
        "keras.src.testing": testing,
        "keras.device": lambda name: contextlib.nullcontext(),
        **TREE,
        **{name.replace("keras.tree", "keras.src.tree"): value for name, value in TREE.items()},
    }
