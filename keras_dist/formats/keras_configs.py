"""Conversion of configs between the forms of Keras and keras_dist. No code in them is run.

An operation of a functional model is in Keras a class, whose config has the arguments that are not tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from keras_dist.serialization.object_registry import snake_case
from keras_dist.symbolic.tensors import OPERATIONS

_OPERATION = {"module": "keras_dist.layers", "class_name": "Operation", "registered_name": None}
_OPS = "keras.src.ops."

_IN_KERAS = {
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "pow": "power",
    "neg": "negative",
    "getitem": "get_item",
    "abs": "absolute",
}
"""Python's operators by the names of Keras."""

_OPERATION_CLASSES = {
    "core": "AssociativeScan Cast Cond ConvertToTensor ForiLoop Map SaturateCast Scan Scatter ScatterUpdate Slice "
    "SliceUpdate StopGradient Switch Unstack VectorizedMap WhileLoop",
    "einops": "Rearrange",
    "image": "AffineTransform CropImages ElasticTransform ExtractPatches GaussianBlur HSVToRGB MapCoordinates "
    "PadImages PerspectiveTransform RGBToGrayscale RGBToHSV Resize SSIM ScaleAndTranslate SobelEdges",
    "linalg": "Cholesky CholeskyInverse Det Eig Eigh Inv JVP Lstsq LuFactor MatrixRank Norm Pinv Qr SVD Solve "
    "SolveTriangular",
    "math": "CDist Erf Erfc Erfinv ExtractSequences FFT FFT2 IFFT2 IRFFT ISTFT InTopK Logdet Logsumexp RFFT Rsqrt "
    "STFT SegmentMax SegmentMin SegmentProd SegmentSum TopK ViewAsComplex ViewAsReal",
    "nn": "AdaptiveAveragePool AdaptiveMaxPool AveragePool BatchNorm BinaryCrossentropy CTCDecode CTCLoss "
    "CategoricalCrossentropy Celu Conv ConvTranspose DepthToSpace DepthwiseConv DotProductAttention Elu "
    "Fold Gelu Glu HardShrink HardSigmoid HardSilu HardTanh LayerNorm LeakyRelu LogSigmoid LogSoftmax "
    "MaxPool Moments MultiHot Normalize OneHot PSNR Polar RMSNorm Relu Relu6 Selu SeparableConv Sigmoid "
    "Silu SoftShrink Softmax Softplus Softsign SpaceToDepth SparseCategoricalCrossentropy SparsePlus "
    "SparseSigmoid Sparsemax Squareplus TanhShrink Threshold Unfold",
}
"""The classes of operations in each module of Keras but `numpy`, which has all others."""

_OF_OTHER_NAME = {
    "AllClose": "allclose",
    "BatchNorm": "batch_normalization",
    "CDist": "cdist",
    "IsIn": "isin",
    "LayerNorm": "layer_normalization",
    "RMSNorm": "rms_normalization",
    "SearchSorted": "searchsorted",
}
"""The operations that are not called as their classes are."""

_SAME = {
    "BitwiseNot": "bitwise_invert",
    "Conj": "conjugate",
    "LeftShift": "bitwise_left_shift",
    "RightShift": "bitwise_right_shift",
}
"""Second classes of operations, which are read."""

_PLACES = {
    _OF_OTHER_NAME.get(name, snake_case(name)): (module, name)
    for module, names in {**_OPERATION_CLASSES, "numpy": "AllClose IsIn SearchSorted"}.items()
    for name in names.split()
}

_CALLED = {
    *("a", "abs_", "angle", "array", "atol", "b", "beta", "bias", "branches", "choicelist", "condition", "condlist"),
    *("constant_values", "coordinates", "data", "default", "depthwise_kernel", "elements", "elems", "end_points", "f"),
    *("false_fn", "fun", "gamma", "image1", "image2", "images", "index", "indices", "init", "init_val", "inputs"),
    *("kernel", "key", "loop_vars", "mask", "mean", "operands", "output", "output_length", "output_shape", "pattern"),
    *("pointwise_kernel", "pred", "predictions", "primals", "q", "query", "rtol", "scale", "segment_ids"),
    *("sequence_lengths", "sorted_sequence", "start", "start_indices", "start_points", "step", "stop", "tangents"),
    *("target", "target_length", "targets", "tensor", "transform", "translation", "true_fn", "updates", "value"),
    *("values", "variable", "variance", "weights", "x", "x1", "x2", "x3", "xs", "y"),
}
"""The parameters that Keras takes in the call of an operation; what else there is, its constructor takes."""

_OTHERWISE = {
    "allclose": {"atol", "rtol"},
    "batch_normalization": {"offset"},
    "bincount": {"weights"},
    "digitize": {"bins"},
    "full": {"fill_value"},
    "full_like": {"fill_value"},
    "squareplus": {"b"},
    "trapezoid": {"x"},
}
"""The parameters with which it is the other way round, by operations."""

_METHODS = {"reshape": ("x", "newshape"), "round": ("x", "decimals"), "squeeze": ("x", "axis")}
"""The parameters of the methods of symbolic tensors, as Keras calls them."""


def is_operation(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of a config is an operation in the form of keras_dist."""
    return {**entry, **_OPERATION} == entry


def operation_to_keras(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an operation in a config to the form of Keras."""
    ours: str = entry["config"]["name"]
    name: str = _IN_KERAS.get(ours, ours)
    called = _CALLED ^ _OTHERWISE.get(ours, set())
    module, class_name = _PLACES.get(name, ("numpy", "".join(part.capitalize() for part in name.split("_"))))
    config: dict[str, Any] = {"name": entry["name"]}
    nodes = []
    for node in entry["inbound_nodes"]:
        names = _parameters(ours, len(node["args"]))
        given = [(names[place], value) for place, value in enumerate(node["args"])]
        config |= {key: value for key, value in [*given, *node["kwargs"].items()] if key not in called}
        args = [value for key, value in given if key in called]
        nodes.append({"args": args, "kwargs": {k: v for k, v in node["kwargs"].items() if k in called}})
    return {
        "module": f"{_OPS}{module}",
        "class_name": class_name,
        "config": config,
        "registered_name": class_name,
        "name": entry["name"],
        "inbound_nodes": nodes,
    }


def operation_from_keras(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert an operation in a config of Keras to the form of keras_dist; None if it is unknown."""
    if not str(entry.get("module")).startswith(_OPS) or not isinstance(entry.get("config"), Mapping):
        return None
    class_name = str(entry.get("class_name"))
    name = _OF_OTHER_NAME.get(class_name) or _SAME.get(class_name) or snake_case(class_name)
    name = next((ours for ours in (name, *(o for o, k in _IN_KERAS.items() if k == name)) if ours in OPERATIONS), None)
    if name is None or not isinstance(entry.get("inbound_nodes"), list):
        return None
    options = {key: value for key, value in entry["config"].items() if key != "name"}
    nodes = []
    for node in entry["inbound_nodes"]:
        args, kwargs = list(node["args"]), {**node["kwargs"]}
        if [*options] == _parameters(name, 1):
            args = [*options.values(), *args]
        elif len(options) == 1:
            args += options.values()
        else:
            kwargs |= options
        if name in ("getitem", "get_item"):  # JSON has no tuples
            args = [_as_tuple(value) for value in args]
        nodes.append({"args": args, "kwargs": kwargs})
    written = {**_OPERATION, "config": {"name": name}, "name": entry["name"], "inbound_nodes": nodes}
    return {**entry, **written}


def _parameters(name: str, count: int) -> list[str]:
    """Return the names of the first parameters of an operation; operators of Python take tensors."""
    if name in _METHODS:
        return [*_METHODS[name]][:count]
    try:
        parameters = inspect.signature(OPERATIONS[name]).parameters
        names = [one for one in parameters if parameters[one].kind is not inspect.Parameter.VAR_KEYWORD]
        if names and parameters[names[-1]].kind is inspect.Parameter.VAR_POSITIONAL:
            names += [names[-1]] * count
    except ValueError:
        names = []
    return (names + ["x"] * count)[:count] if name not in _IN_KERAS else ["x"] * count


def _as_tuple(value: Any) -> Any:
    return {"class_name": "__tuple__", "config": {"value": value}} if isinstance(value, list) else value


_HOUSE = "keras_dist"

_CLASSES = {
    ("models", "Model"): ("keras.src.models.functional", "Functional", "Functional"),
    ("models", "Sequential"): ("keras", "Sequential", None),
    ("layers", "GroupedQueryAttention"): ("keras.layers", "GroupQueryAttention", None),
    ("mixed_precision", "DTypePolicy"): ("keras", "DTypePolicy", None),
}
"""Classes with another name or module in Keras: module, class and registered name there."""

_ONLY_HERE = {
    **dict.fromkeys(("SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"), ("trainable",)),
    "Muon": ("exclude", "include", "coefficients", "ns_dtype", "neuron_beta"),
}
"""The arguments of classes that Keras does not take, beside layouts."""

_OPTIMIZERS_ONLY_HERE = ("Adam8bit", "AdamW8bit", "RowWiseAdagrad")

_COMPILE = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly", "jit_compile")
"""The arguments of `compile` that Keras has, except `steps_per_execution`."""


def to_keras(written: Any) -> Any:
    """Convert a config to the form of Keras: its modules, tuples and operations, without layouts."""
    if isinstance(written, list):
        return [to_keras(item) for item in written]
    if not isinstance(written, Mapping):
        return written
    if is_operation(written):
        return to_keras(operation_to_keras({**written, "inbound_nodes": to_keras(written["inbound_nodes"])}))
    if "class_name" not in written or "config" not in written:
        return {key: to_keras(value) for key, value in written.items()}
    class_name, config = written["class_name"], written["config"]
    if class_name == "__tuple__":
        return to_keras(config["value"])
    house, _, room = str(written.get("module")).partition(".")
    if isinstance(config, Mapping):
        left_out = _ONLY_HERE.get(class_name, ()) if house == _HOUSE else ()
        kept = {name: value for name, value in config.items() if not _is_layout(name, value) and name not in left_out}
        config = numbered(kept, 1)
    found = {key: to_keras(config if key == "config" else value) for key, value in written.items()}
    name = written.get("registered_name")
    if class_name == "function" and house not in (_HOUSE, "builtins") and isinstance(name, str):
        return {**found, "module": "builtins", "config": name, "registered_name": "function"}
    if house == _HOUSE:
        module, name, registered = _CLASSES.get((room, class_name), (f"keras.{room}", class_name, None))
        registered = config if class_name == "function" else registered
        found |= {"module": module, "class_name": name, "registered_name": registered}
    return found


def compile_to_keras(written: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert the config of `compile` to the form of Keras; None without a counterpart in Keras."""
    optimizer = written.get("optimizer")
    is_known = isinstance(optimizer, str) or (isinstance(optimizer, Mapping) and "class_name" in optimizer)
    if not is_known or written.get("train_step") is not None:
        return None
    if isinstance(optimizer, Mapping) and not str(optimizer.get("module")).startswith(f"{_HOUSE}."):
        return None  # a subclass, which Keras cannot have
    if not _is_in_keras(optimizer):
        return None
    steps = written.get("steps_per_execution")
    found = {name: to_keras(written[name]) for name in _COMPILE if name in written}
    return {**found, "steps_per_execution": steps if isinstance(steps, int) else 1}


def _is_in_keras(written: Any) -> bool:
    """Whether Keras has the optimizers in a config, and their arguments."""
    if isinstance(written, list):
        return all(map(_is_in_keras, written))
    if not isinstance(written, Mapping):
        return True
    class_name, config = written.get("class_name"), written.get("config")
    if class_name in _OPTIMIZERS_ONLY_HERE:
        return False
    if class_name == "Muon" and isinstance(config, Mapping):
        return all(config.get(name) is None for name in _ONLY_HERE["Muon"])
    return all(map(_is_in_keras, written.values()))


def from_keras(config: Any) -> Any:
    """Convert a config of Keras or keras_dist for `deserialize_keras_object`; operations get their names."""
    if isinstance(config, list):
        return [from_keras(item) for item in config]
    if not isinstance(config, Mapping):
        return config
    operation = operation_from_keras(config)
    found = config if operation is None else operation
    inner = found.get("config")
    if isinstance(inner, Mapping) and not _is_ours(inner):
        found = {**found, "config": numbered(inner, -1)}
    return {key: from_keras(value) for key, value in found.items()}


def numbered(graph: Mapping[str, Any], more: int, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return the config of a functional model with renumbered calls of inner models at inputs and outputs.

    Keras counts calls of models from 1, calls of layers from 0. Only the models of these names are renumbered; by
    default all functional models. Other configs are returned unchanged.
    """
    if not is_graph(graph):
        return dict(graph)
    if names is None:
        names = {layer.get("name") for layer in graph["layers"] if is_graph(layer.get("config"))}

    def moved(places: Any) -> Any:
        if isinstance(places, list) and [type(item) for item in places] == [str, int, int]:
            name, call, index = places
            return [name, call + more, index] if name in names else places
        if isinstance(places, Mapping):
            return {key: moved(item) for key, item in places.items()}
        return [moved(item) for item in places] if isinstance(places, list) else places

    return {**graph, "input_layers": moved(graph["input_layers"]), "output_layers": moved(graph["output_layers"])}


def is_graph(config: Any) -> bool:
    """Whether a config describes a functional model."""
    if not (isinstance(config, Mapping) and {"layers", "input_layers", "output_layers"} <= {*config}):
        return False
    return isinstance(config["layers"], list) and all(isinstance(layer, Mapping) for layer in config["layers"])


def _is_ours(graph: Mapping[str, Any]) -> bool:
    """Whether keras_dist wrote the config of a functional model, judged by the modules of its layers."""
    return is_graph(graph) and any(str(layer.get("module")).startswith(f"{_HOUSE}.") for layer in graph["layers"])


def _is_layout(name: str, value: Any) -> bool:
    """Whether an argument is the layout of a weight, which Keras does not have."""
    is_axes = isinstance(value, list) and all(axis is None or isinstance(axis, str | list) for axis in value)
    return name.endswith("_layout") and (value is None or is_axes)
