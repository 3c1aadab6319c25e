"""Replacements of names of Keras and TensorFlow that keras_dist does not have: errors and `KERAS.md` show them.

Also loads names at their first use whose modules load slowly, or are above the floor of a package: `tell_place`
registers them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from keras_dist.errors import did_you_mean

_IN_DATA = (
    "AugMix AutoContrast ContrastLimitedAdaptiveHistogramEqualization CutMix Equalization HashedCrossing MixUp "
    "MelSpectrogram RandAugment RandomColorDegeneration RandomColorJitter RandomElasticTransform RandomErasing "
    "RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective RandomPosterization RandomSaturation "
    "RandomSharpness RandomShear STFTSpectrogram Solarization"
)

OF_KERAS = {
    "dtype_policies.DTypePolicyMap": "`dtype=` of the layers; a policy is for all of a layer",
    "dtype_policies.*DTypePolicy": "`kd.mixed_precision.DTypePolicy`; models are quantized by `model.quantize`",
    "Function": "`kd.Model(inputs, outputs)`",
    "Operation": "`kd.Layer`",
    "Quantizer": "`model.quantize`",
    "StatelessScope": "`model.stateless_call`",
    "SymbolicScope": "`kd.Input`, and `jax.eval_shape`",
    "applications.*": "Keras's own, by `kd.Model.from_keras`; any `flax.nnx` model, by `kd.Model.from_nnx`",
    "callbacks.RemoteMonitor": "`kd.callbacks.LambdaCallback` with `requests.post` in `on_epoch_end`",
    "datasets.*": "`tensorflow_datasets`",
    "distillation.*": "a `train_step` of your own",
    "export.*": "`model.export`, `jax.export`",
    "layers.MaxNumBoundingBoxes": "pad while data is read",
    **{
        f"layers.{name}": f"`keras.layers.{name}` in the data pipeline, such as `kd.data.BatchedDataset.map(layer)`"
        for name in _IN_DATA.split()
    },
    "layers.TFSMLayer": "nothing, keras_dist does not run TensorFlow",
    "layers.TorchModuleWrapper": "nothing, keras_dist does not run PyTorch",
    "legacy.*": "`kd.saving`",
    "optimizers.legacy.*": "`kd.optimizers`",
    "quantizers.*": "`model.quantize`",
    "saving.KerasFileEditor": "`h5py`; `load_weights` with `skip_mismatch=True` or `objects_to_skip=`",
    "utils.Config": "a dict",
    "utils.FeatureSpace": "`StringLookup`, `IntegerLookup`, `Discretization` and `Normalization`, one for each feature",
    "utils.bounding_boxes.*": "`jax.numpy`: boxes are plain arrays, which need no layout",
    "utils.audio_dataset_from_directory": "`tensorflow_datasets`",
    "utils.legacy.*": "`kd.saving`",
    "visualization.*": "matplotlib",
    "wrappers.*": "nothing, keras_dist does not wrap models for scikit-learn",
}
"""Replacements of names and packages of Keras, by name or `fnmatch` pattern; the first match counts."""

OF_TENSORFLOW = {
    **dict.fromkeys(("cast", "convert_to_tensor", "reduce_mean", "reduce_sum", "split"), "`jax.numpy`"),
    "GradientTape": "`value_and_grad` of `keras_dist.dtensor`, or `jax.value_and_grad`; `model.fit` needs neither",
    "Module": "`keras_dist.dtensor.Module`, or `flax.nnx.Module`",
    "Tensor": "`jax.Array`",
    **dict.fromkeys(("config.list_logical_devices", "config.list_physical_devices"), "`kd.list_devices`"),
    **dict.fromkeys(
        ("config.LogicalDeviceConfiguration", "config.set_logical_device_configuration"), "`kd.use_cpu_devices(8)`"
    ),
    **dict.fromkeys(("data.AUTOTUNE", "data.Dataset"), "`fit` takes `tf.data.Dataset`s, arrays and generators"),
    **dict.fromkeys(
        ("distribute", "MirroredStrategy"),
        "`kd.DataParallel`, `kd.ModelParallel`, `kd.FullySharded`; `kd.initialize` for several processes",
    ),
    "experimental": "`keras_dist.dtensor` for `tf.experimental.dtensor`",
    "dtensor.GradientTape": "`dtensor.value_and_grad`: JAX differentiates functions, and records nothing",
    "dtensor.LayoutMap": "`dtensor.keras.LayoutMap`, or `kd.LayoutMap`, with the rules of Keras 3",
    "dtensor.MATCH": "the entries of `dtensor.fetch_layout(tensor).sharding_specs` where they are to stay",
    "dtensor.create_tpu_mesh": "`dtensor.create_distributed_mesh`, which arranges TPUs as they are connected",
    "dtensor.device_name": "`dtensor.default_mesh(mesh)`: no device represents a mesh",
    "dtensor.enable_save_as_bf16": "`dtensor.name_based_save` of `variable.astype('bfloat16')`",
    "dtensor.heartbeat_enabled": "`kd.initialize(heartbeat_timeout_s=...)`: processes always watch each other",
    **dict.fromkeys(
        ("dtensor.initialize_multi_client", "dtensor.initialize_tpu_system"), "`dtensor.initialize_accelerator_system`"
    ),
    "dtensor.sharded_save": "`dtensor.name_based_save(mesh, path, dict(zip(names, tensors)))`",
    "dtensor.shutdown_tpu_system": "`dtensor.shutdown_accelerator_system`",
    "dtensor.keras.experimental": "`dtensor.keras` itself",
    "dtensor.keras.layers": "`kd.layers`, whose layers take `kernel_layout=` and the like",
    **{
        f"dtensor.keras.optimizers.{name}": f"`kd.optimizers.{name}`, which takes `mesh=`, too"
        for name in ("Adafactor", "Adamax", "Ftrl", "Lion", "Nadam")
    },
    "function": "`keras_dist.dtensor.function`, or `jax.jit`",
    "io": "`pathlib`, or `etils.epath` for buckets",
    "keras": "`keras_dist` itself; `keras_dist.dtensor.keras` for `tf.keras.dtensor.experimental`",
    "math": "`jax.numpy`",
    "nn": "`jax.nn`",
    "random.Generator": "`kd.random.SeedGenerator`",
    "random.set_seed": "`kd.utils.set_random_seed`",
    "train": "`kd.checkpoint`",
}
"""Replacements of names of TensorFlow, mainly of DTensor programs."""

_above: dict[str, str] = {}


def tell_place(package: str, names: Iterable[str], module: str) -> None:
    """Register names in the `__all__` of `package` that `module` defines, which is imported at their first use."""
    _above.update(dict.fromkeys((f"{package}.{name}" for name in names), module))


def note_on(name: str, notes: Mapping[str, str]) -> str:
    """Return the note under this name, else under the first pattern that it matches, else nothing."""
    return notes.get(name) or next((note for pattern, note in notes.items() if fnmatchcase(name, pattern)), "")


def missing_from(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, whose AttributeError names what to use instead of a name of others."""

    def __getattr__(name: str) -> Any:
        if place := _above.get(f"{module}.{name}"):
            value = getattr(importlib.import_module(place), name)
            setattr(sys.modules[module], name, value)
            return value
        text = f"module {module!r} has no attribute {name!r}"
        known_as = f"{module.partition('.')[2]}.{name}".lstrip(".")
        note = note_on(known_as, OF_KERAS) or OF_KERAS.get(f"{known_as}.*") or OF_TENSORFLOW.get(known_as)
        if note and not name.startswith("_"):
            text += f"; instead: {note}"
        elif not name.startswith("_"):
            text += did_you_mean(name, dir(sys.modules[module]))
        raise AttributeError(text, name=name)

    return __getattr__
