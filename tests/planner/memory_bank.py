"""Models whose train steps are planned and compiled, to compare the planned memory with XLA's; see `memory_records`."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax

import keras_dist as kd
from keras_dist.planner import propagate
from keras_dist.planner.compiled import figures
from keras_dist.planner.targets import as_target, devices
from keras_dist.planner.tracing import StepProgram, trace_step
from keras_dist.planner.verdict import bounds_nbytes
from tests.planner.memory_networks import (
    ChunkedStateSpace,
    Dlrm,
    Mixer,
    Mlp,
    Reshaped,
    Resnet,
    Stack,
    Stages,
    StateSpace,
    Unet,
    Wavenet,
    recurrent,
)
from tests.planner.memory_records import Comparison
from tests.planner.memory_transformers import (
    LENGTH,
    WIDTH,
    Decoder,
    Dit,
    Dropped,
    EncoderDecoder,
    Experts,
    Fused,
    Vit,
    bert,
)

ROWS = 1024  # intermediate results far larger than the 128 MiB of VMEM

CROSSENTROPY = kd.losses.SparseCategoricalCrossentropy(from_logits=True)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its batch; `layouts` are names of `LAYOUTS`."""

    factory: Callable[..., Any]
    batch: Any
    layouts: tuple[str, ...] = ("data", "fsdp")
    loss: Any = None


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """An array of this shape that is not allocated."""
    return jax.ShapeDtypeStruct(shape, dtype)


TOKENS, HALF = (array(rows, LENGTH, dtype="int32") for rows in (ROWS, ROWS // 2))
SEQUENCES = array(ROWS, LENGTH, WIDTH)
IMAGES, LABELS = array(ROWS, 128, 128, 3), array(ROWS, dtype="int32")
TEXT = ((TOKENS, TOKENS), ("data", "fsdp", "megatron", "hybrid"), CROSSENTROPY)
ACTIVATIONS = ((SEQUENCES, SEQUENCES), ("data", "fsdp"), "mse")
PLAIN = ((SEQUENCES, SEQUENCES), ("data", "fsdp", "megatron"), "mse")

BANK = {
    "MLP": Case(Mlp, (array(2**18, 1024), array(2**18, 1024)), loss="mse"),
    "24 linear layers": Case(Reshaped, (array(4 * ROWS, 64, 512), array(4 * ROWS, 64, 512)), loss="mse"),
    "8 LSTM": Case(recurrent("LSTM", 8), (array(4 * ROWS, 64, WIDTH), array(4 * ROWS, 64, WIDTH)), loss="mse"),
    "3 GRU": Case(recurrent("GRU", 3), (array(4 * ROWS, 64, WIDTH), array(4 * ROWS, 64, WIDTH)), loss="mse"),
    "scanned stages": Case(Stages, *ACTIVATIONS),
    "state space": Case(lambda rngs: Stack(rngs, StateSpace, 2), *ACTIVATIONS),
    "chunked state space": Case(lambda rngs: Stack(rngs, ChunkedStateSpace), *ACTIVATIONS),
    "decoder": Case(Decoder, *TEXT),
    "decoder, scanned": Case(functools.partial(Decoder, is_scanned=True), *TEXT),
    "decoder, remat": Case(functools.partial(Decoder, is_repeated=True), *TEXT),
    "decoder, scanned, remat": Case(functools.partial(Decoder, is_scanned=True, is_repeated=True), *TEXT),
    "decoder, many tokens": Case(functools.partial(Decoder, vocab=32768, depth=2), (HALF, HALF), *TEXT[1:]),
    "encoder-decoder": Case(EncoderDecoder, *TEXT),
    "GPT-2": Case(lambda rngs: Stack(rngs, Fused), *PLAIN),
    "BERT": Case(bert, (TOKENS, TOKENS), ("data", "fsdp", "megatron"), CROSSENTROPY),
    "dropout": Case(Dropped, *PLAIN),
    "ViT": Case(
        Vit, (array(ROWS, 128, 128, 3), array(ROWS, dtype="int32")), ("data", "fsdp", "megatron"), CROSSENTROPY
    ),
    "DiT": Case(Dit, *PLAIN),
    "mixer": Case(lambda rngs: Stack(rngs, Mixer), *ACTIVATIONS),
    "experts": Case(lambda rngs: Stack(rngs, Experts, 2), *ACTIVATIONS),
    "U-Net": Case(Unet, (array(2 * ROWS, 64, 64, 3), array(2 * ROWS, 64, 64, 3)), loss="mse"),
    "ResNet": Case(Resnet, (array(2 * ROWS, 64, 64, 3), array(2 * ROWS, dtype="int32")), loss=CROSSENTROPY),
    "WaveNet": Case(Wavenet, (array(ROWS, 1024, 64), array(ROWS, 1024, 64)), loss="mse"),
    "DLRM": Case(Dlrm, (array(65536, 4, dtype="int32"), array(65536, 1)), loss="mse"),
}


def megatron(devices: Any, is_stacked: bool) -> kd.LayoutMap:
    """Return rules for heads, hidden dims and the vocabulary, of modules in a list or stacked."""
    rules, stack = kd.LayoutMap(kd.DeviceMesh("data=2,model=4", devices=devices)), (None,) * is_stacked
    rules[r".*(query|key|value)/kernel"] = (*stack, None, "model", None)
    rules[r".*(query|key|value)/bias"] = (*stack, "model", None)
    rules[r".*attention_output/kernel"] = (*stack, "model", None, None)
    rules[r".*(attention|across|attentions/\d+|across/\d+)/out/kernel"] = (*stack, "model", None, None)
    rules[r".*(up(_\d)?|gate|qkv|ups/\d+)/kernel"] = (*stack, None, "model")
    rules[r".*(up(_\d)?|gate|qkv|ups/\d+)/bias"] = (*stack, "model")
    rules[r".*(down(_\d)?|downs/\d+|parts/\d+/out)/kernel"] = (*stack, "model", None)
    rules[r"embed/embedding|embedding/embeddings"] = ("model", None)
    rules[r"head/kernel"] = (None, "model")
    return rules


def distributed(name: str, target: str, is_stacked: bool) -> kd.Distribution:
    """Return the distribution of this name over 8 devices of a target."""
    if name in ("data", "fsdp"):
        mesh = kd.DeviceMesh("data=8", devices=devices(target, (8,)))
        return kd.FullySharded(mesh) if name == "fsdp" else kd.DataParallel(mesh)
    rules = megatron(devices(target, (2, 4)), is_stacked)
    if name == "hybrid":
        return kd.FullySharded(rules.device_mesh, "data", rules)
    return kd.ModelParallel(rules, batch_dim_name="data")


def traced(name: str, layout: str, target: str, rows: int | None = None) -> StepProgram:
    """Return the traced step of a case, for batches of so many rows."""
    case, platform = BANK[name], as_target(target).platform
    batch = jax.tree.map(lambda each: array(rows or each.shape[0], *each.shape[1:], dtype=each.dtype), case.batch)
    distribution = distributed(layout, target, "scanned" in name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rules that match nothing
        return trace_step(case.factory, batch, distribution, "adam", case.loss, platform=platform)


def compared(name: str, layout: str, target: str, rows: int | None = None, timeout_seconds: float = 3000) -> Comparison:
    """Plan and compile a case."""
    program = traced(name, layout, target, rows)
    found = figures(program, target, timeout_seconds=timeout_seconds)
    state = found.argument_nbytes + max(0, found.output_nbytes - found.alias_nbytes)
    rows = rows or jax.tree.leaves(BANK[name].batch)[0].shape[0]
    return Comparison(name, layout, rows, state, *estimated(program, target), found.temp_nbytes)


def estimated(program: StepProgram, target: str) -> tuple[int, int, int]:
    """Return the estimate of the peak of intermediate results, and its bounds."""
    memory, machine = propagate(program.lowered).memory, as_target(target)
    bounds = bounds_nbytes(machine.platform, memory, machine.chip.vector_nbytes)
    return memory.nbytes, *(bound - memory.padding_nbytes for bound in bounds)
