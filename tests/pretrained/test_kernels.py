"""Attention by kernels: splash attention interpreted on CPUs, against numpy; cuDNN as far as its program."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_dist as kd
from keras_dist.distribution.abstract import abstract_meshes
from keras_dist.distribution.tracing import kernels_noted, traced_in
from keras_dist.errors import ModelError
from keras_dist.planner import devices
from keras_dist.pretrained import AttentionConfig, Decoder, DecoderConfig, FeedForwardConfig
from keras_dist.pretrained.attending import Scores, Span, Windows
from keras_dist.pretrained.kernels import attend_by
from tests.pretrained.networks import FOLDER

BATCH, HEADS, SIZE = 2, 4, 8
WEIGHT = types.SimpleNamespace(path="query/kernel", shape=(16, HEADS, SIZE), dtype=np.dtype("float32"))
PACKED = np.array([[1] * 7 + [2] * 13 + [0] * 4, [1] * 20 + [2] * 4], "int32")


def by_model(mesh):
    rules = kd.LayoutMap(mesh)
    rules["query/kernel"] = (None, "model", None)
    return kd.ModelParallel(layout_map=rules, batch_dim_name="data")


def on_two_devices():
    return kd.DataParallel(kd.DeviceMesh("data=2", devices=kd.list_devices()[:2]))


def arrays(length, kv_heads, dtype="float32"):
    rng, heads = np.random.default_rng(0), (HEADS, kv_heads, kv_heads, HEADS)
    return [rng.normal(size=(BATCH, length, count, SIZE)).astype(dtype) for count in heads]


def options(length, segments=None, positions=None, **given):
    span = Span(np.arange(length), segments, positions)
    return Scores(span, span, **{"scale": 0.3, **given})


def by_numpy(query, key, value, seed, given):
    """Outputs, and gradients of their products with `seed`, one head of one row at a time."""
    outputs, grads = np.zeros(query.shape), [np.zeros(each.shape) for each in (query, key, value)]
    index, group = np.arange(query.shape[1]), HEADS // key.shape[2]
    for row, head in np.ndindex(BATCH, HEADS):
        q, k, v, g = (
            each[row, :, at].astype("float64")
            for each, at in zip((query, key, value, seed), (head, head // group, head // group, head), strict=True)
        )
        seen = np.full((len(index),) * 2, True)
        if given.is_causal:
            seen &= index[:, None] >= index
        if given.window is not None:
            distance = index[:, None] - index
            seen &= (distance if given.is_causal else abs(distance)) < given.window
        if given.queries.segments is not None:
            seen &= given.queries.segments[row][:, None] == given.queries.segments[row]
        scores = q @ k.T * given.scale
        bent = 1.0
        if given.soft_cap is not None:
            tanh = np.tanh(scores / given.soft_cap)
            scores, bent = given.soft_cap * tanh, 1 - tanh**2
        shares = np.exp(np.where(seen, scores, -np.inf))
        shares /= shares.sum(-1, keepdims=True)
        outputs[row, :, head] = shares @ v
        of_shares = g @ v.T
        of_scores = shares * (of_shares - (of_shares * shares).sum(-1, keepdims=True)) * bent * given.scale
        grads[0][row, :, head] = of_scores @ k
        grads[1][row, :, head // group] += of_scores.T @ q
        grads[2][row, :, head // group] += shares.T @ g
    return outputs, grads


def traced(distribution, implementation, given, arrays, function=None):
    """The result of attention in a program for the mesh, and the kernel that it notes."""

    def attended(*arrays):
        return traced_in(distribution, BATCH, lambda: attend_by(implementation, WEIGHT, arrays, given))

    with kernels_noted() as noted:
        return (function or jax.jit)(attended)(*arrays), list(noted)


CASES = {
    "packed, capped, in a window, on (2, 4)": (
        "data=2,model=4",
        24,
        2,
        {"window": 5, "soft_cap": 2.0, "segments": PACKED},
    ),
    "in both directions, on two devices": (None, 20, 4, {"is_causal": False}),
    "in a window in both directions": (None, 20, 4, {"is_causal": False, "window": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_splash_attention_equals_numpy_with_its_gradients(case):
    mesh, length, kv_heads, given = CASES[case]
    distribution = on_two_devices() if mesh is None else by_model(kd.DeviceMesh(mesh))
    check(distribution, length, kv_heads, options(length, **given))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("window", [100, None, 500])
def test_splash_attention_in_several_blocks(window):
    check(on_two_devices(), 300, 1, options(300, window=window))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("implementation", ["splash", "ring"])
def test_a_layer_of_a_loop_has_the_kernel_of_its_window(implementation):
    distribution = by_model(kd.DeviceMesh("data=2,model=4"))
    if implementation == "ring":
        distribution = kd.ModelParallel(kd.LayoutMap(distribution.device_mesh), "data", sequence_axis="model")
    *inputs, seed = arrays(24, 2)

    def attended(index, *inputs):
        given = options(24, window=Windows((5, None, 2), index), soft_cap=2.0, segments=PACKED)
        return traced_in(distribution, BATCH, lambda: attend_by(implementation, WEIGHT, inputs, given))

    def differentiated(index, *inputs):
        output, back = jax.vjp(functools.partial(attended, index), *inputs)
        return output, back(jnp.asarray(seed))

    with kernels_noted() as noted:
        program = jax.jit(differentiated)
        for index, window in enumerate((5, None, 2)):
            output, grads = program(jnp.asarray(index), *inputs)
            right = by_numpy(*inputs, seed, options(24, window=window, soft_cap=2.0, segments=PACKED))
            for found, expected in zip((output, *grads), (right[0], *right[1]), strict=True):
                np.testing.assert_allclose(found, expected, atol=2e-5)
    name = {"splash": "attention by Pallas splash", "ring": "attention in a ring over model"}[implementation]
    assert len(noted) == 1 and next(iter(noted)).startswith(name)


@pytest.mark.parametrize("window", [None, 5])
def test_attention_in_a_ring_equals_numpy_with_its_gradients(window):
    ring = kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh("data=2,model=4")), "data", sequence_axis="model")
    given = options(24, window=window, soft_cap=2.0, segments=PACKED)
    check(ring, 24, 2, given, "auto", "attention in a ring over model")


def check(distribution, length, kv_heads, given, implementation="splash", note=None):
    *inputs, seed = arrays(length, kv_heads)

    def differentiated(attended):
        return jax.jit(lambda *inputs: (lambda out, back: (out, back(jnp.asarray(seed))))(*jax.vjp(attended, *inputs)))

    (output, grads), noted = traced(distribution, implementation, given, inputs, differentiated)
    expected, expected_grads = by_numpy(*inputs, seed, given)
    for found, right in zip((output, *grads), (expected, *expected_grads), strict=True):
        np.testing.assert_allclose(found, right, atol=2e-5)
    heads = ", heads over model" if kv_heads == 2 else ""
    pallas = f"attention by Pallas splash attention, rows over data{heads}; plans do not count its FLOPs"
    assert noted == [note or pallas]


@pytest.mark.slow
@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "mistral"])
def test_a_network_with_splash_attention_equals_transformers(family, scan):
    model = kd.pretrained.load(FOLDER / family, scan=scan, attention="splash")
    values = load_file(FOLDER / family / "outputs.safetensors")
    np.testing.assert_allclose(model(values["input_ids"]), values["outputs"], atol=1e-4)


def test_all_reasons_against_an_implementation_are_listed():
    mesh = kd.DeviceMesh("data=2,model=4")
    given = options(24, soft_cap=2.0)
    with pytest.raises(
        ModelError, match=r"(?s)'cudnn' cannot .*soft_cap=2.0.*float32.*platform 'cpu'.*attention='auto'"
    ):
        traced(by_model(mesh), "cudnn", given, arrays(24, 2)[:3])
    given = options(24, positions=PACKED, window=3)
    with pytest.raises(ModelError, match=r"(?s)'splash' cannot .*positions without segments.*float16"):
        traced(by_model(mesh), "splash", given, arrays(24, 2, "float16")[:3])
    with pytest.raises(ModelError, match="no mesh is set: it does not divide the rows"):
        traced(kd.DataParallel(kd.DeviceMesh("data=8")), "splash", options(24), arrays(24, 2)[:3])


@pytest.mark.parametrize("name", ["cudnn", "splash", "ring"])
def test_sinks_are_computed_by_xla_alone(name):
    mesh = kd.DeviceMesh("data=2,sequence=4")
    distribution = kd.ModelParallel(kd.LayoutMap(mesh), "data", sequence_axis="sequence")
    with pytest.raises(ModelError, match="scores with sinks"):
        traced(distribution, name, options(24, sinks=np.zeros(HEADS, "float32")), arrays(24, 2)[:3])


def test_an_unknown_implementation_is_an_error():
    with pytest.raises(ModelError, match=r"(?s)`attention` must be one of .*'splash', 'ring'.*attention='flash'"):
        kd.pretrained.describe(FOLDER / "llama", attention="flash")


def lowered(target, given, dtype="bfloat16", kv_heads=2):
    """The text of the program of `"auto"` for a target, and the kernels that it notes."""
    machine = kd.planner.target(target)
    mesh = kd.DeviceMesh("data=2,model=4", devices=devices(machine))
    shapes = [jax.ShapeDtypeStruct(each.shape, dtype) for each in arrays(24, kv_heads)[:3]]

    def made(attended):
        return lambda *shapes: jax.jit(attended).trace(*shapes).lower(lowering_platforms=(machine.platform,))

    with abstract_meshes(machine.platform):
        found, noted = traced(by_model(mesh), "auto", given, shapes, made)
    return found.as_text(), noted


@pytest.fixture
def cudnn(monkeypatch):
    """JAX takes this machine for one with cuDNN."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)


@pytest.mark.parametrize(
    ("given", "mask"),
    [
        ({}, "CAUSAL"),
        ({"window": 4}, "CAUSAL"),
        ({"is_causal": False}, "NO_MASK"),
        ({"segments": PACKED, "window": 4}, "CAUSAL"),
    ],
)
def test_gpus_get_cudnn(cudnn, given, mask):
    text, noted = lowered("h100:1x1x8", options(24, **given))
    assert noted[0].startswith("attention by cuDNN, rows over data, heads over model")
    assert ("fmhaScaleBiasSoftmax" if "segments" in given else "fmhaSoftmax") in text
    assert f"\\22mask_type\\22: \\22{mask}\\22" in text
    is_by_length = "window" in given and "segments" not in given
    assert f"\\22sliding_window_length\\22: {4 if is_by_length else 0}" in text
    assert "tensor<1x24x1x8xbf16>" in text  # of one device: one row, one head


def test_tpus_get_splash_attention():
    text, noted = lowered("v5e:2x4", options(24, segments=PACKED, soft_cap=2.0))
    assert noted[0].startswith("attention by Pallas splash attention, rows over data, heads over model")
    assert "splash_mha_fwd_segmented" in text and "tpu_custom_call" in text


@pytest.mark.parametrize(
    ("target", "given", "reason"),
    [
        (
            "h100:1x1x8",
            {"soft_cap": 2.0},
            "cuDNN cannot be used: scores with soft_cap=2.0; JAX says: cuDNN is not detected",
        ),
        ("v5e:2x4", {"window": 3, "positions": PACKED}, "splash attention cannot be used: positions without segments"),
        ("v5e:2x4", {"sinks": np.zeros(HEADS, "float32")}, "splash attention cannot be used: scores with sinks"),
        ("h100:1x1x8", {"sinks": np.zeros(HEADS, "float32")}, "cuDNN cannot be used: scores with sinks"),
    ],
)
def test_elsewhere_xla_computes_and_the_reason_is_noted(target, given, reason):
    text, noted = lowered(target, options(24, **given))
    assert len(noted) == 1 and reason in noted[0] and noted[0].startswith("attention by XLA, since ")
    assert "custom_call_target" not in text and "dot_general" in text


def test_splash_attention_in_bfloat16_needs_the_default_precision_of_products():
    """Mosaic compiles no products of bfloat16 in another one: libtpu 0.0.42, "Bad lhs type"."""
    with jax.default_matmul_precision("highest"):
        _, noted = lowered("v5e:2x4", options(24))
        assert "bfloat16 with the matmul precision 'highest'" in noted[0]
        assert lowered("v5e:2x4", options(24), "float32")[1][0].startswith("attention by Pallas")


BOTH = Windows((None, 4), np.int32(0))


def test_loops_over_layers_with_different_windows_get_kernels(cudnn):
    text, noted = lowered("v5e:2x4", options(24, window=BOTH))
    assert len(noted) == 1 and noted[0].startswith("attention by Pallas splash attention")
    assert "stablehlo.case" in text and text.count("tpu_custom_call") == 2
    text, noted = lowered("h100:1x1x8", options(24, window=BOTH))
    assert len(noted) == 1 and noted[0].startswith("attention by cuDNN")
    assert all(f"\\22sliding_window_length\\22: {length}" in text for length in (0, 4))
    text, noted = lowered("v5e:2x4", options(24, window=BOTH, positions=PACKED))
    assert [note.partition(",")[0] for note in noted] == ["attention by Pallas splash attention", "attention by XLA"]
    assert text.count("tpu_custom_call") == 1 and "dot_general" in text
    text, _ = lowered("h100:1x1x8", options(24, window=BOTH, soft_cap=2.0))
    assert "stablehlo.case" not in text  # one product for all windows


def decoder(implementation, **options):
    attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=8, implementation=implementation, **options)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_layers": 2, "feed_forward": FeedForwardConfig(24)}
    return Decoder(DecoderConfig(family="llama", attention=attention, **sizes), scan=True)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("windows", [{"window": 4, "sliding_layers": (0,)}, {}], ids=["two windows", "equal layers"])
def test_a_plan_names_the_kernel_of_its_target(windows):
    tokens = jax.ShapeDtypeStruct((8, 16), "int32")
    with kd.DataParallel(kd.DeviceMesh("data=8", devices=devices("v5e:2x4"))).scope():
        model = decoder("auto", **windows)
    found = kd.plan(model, (tokens, tokens), loss="causal_lm", target="v5e:2x4", compiles=False)
    assert found.to_dict()["kernels"] == [*found.kernels] and "splash" in found.kernels[0] and len(found.kernels) == 1
    assert f"kernel: {found.kernels[0]}" in str(found)


@pytest.mark.slow
def test_a_search_for_layouts_follows_the_heads_through_attention():
    tokens = jax.ShapeDtypeStruct((8, 16), "int32")

    def two_windows(name):
        return decoder(name, window=4, sliding_layers=(0,))

    expected, found = (
        str(kd.planner.dim_classes(functools.partial(two_windows, name), tokens)) for name in ("xla", "splash")
    )
    assert found == expected
