"""Operations in configs of functional models; in Keras each is a class whose config has the non-tensor arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from keras_dist.saving.object_registry import snake_case
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

_CLASSES = {
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
    for module, names in {**_CLASSES, "numpy": "AllClose IsIn SearchSorted"}.items()
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
