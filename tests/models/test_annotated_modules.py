"""Modules with layouts of their own, annotated as tunix, bonsai and gemma are: sharded as they say, slots included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from tests import layouts

TOKENS = np.arange(8 * 4).reshape(8, 4) % 16


class Einsum(nnx.Module):
    def __init__(self, einsum_str, shape, *, rngs, sharding):
        self.einsum_str = einsum_str
        self.w = nnx.Param(nnx.initializers.normal()(rngs.params(), shape), sharding=sharding)

    def __call__(self, x):
        return jnp.einsum(self.einsum_str, x, self.w[...])


class Block(nnx.Module):
    def __init__(self, rngs):
        self.q_proj = Einsum("BTD,DNH->BTNH", (8, 2, 4), rngs=rngs, sharding=P("fsdp", "tp", None))
        self.o_proj = Einsum("BTNH,NHD->BTD", (2, 4, 8), rngs=rngs, sharding=P("tp", None, "fsdp"))
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), P("fsdp", "tp"))
        self.gate = nnx.Linear(8, 8, use_bias=False, rngs=rngs, kernel_init=init)
        self.norm = nnx.RMSNorm(8, rngs=rngs, scale_metadata={"out_sharding": P("tp")})

    def __call__(self, x):
        return x + self.gate(self.norm(self.o_proj(self.q_proj(x))))


class Decoder(nnx.Module):
    def __init__(self, rngs):
        self.embedder = nnx.Embed(16, 8, rngs=rngs, embedding_metadata={"out_sharding": P("tp", "fsdp")})
        self.block = Block(rngs)

        @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
        def stacked(rngs):
            init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", "mlp"))
            return nnx.Linear(8, 8, rngs=rngs, kernel_init=init)

        self.stack = stacked(rngs.split(2))

    def __call__(self, tokens):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, transform_metadata={nnx.PARTITION_NAME: "layers"})
        def run(x, layer):
            return nnx.relu(layer(x))

        return self.embedder.attend(run(self.block(self.embedder(tokens)), self.stack))


NAMES = {"embed": "fsdp", "mlp": "tp", "layers": None}
LAYOUTS = {
    "embedder/embedding": ("tp", "fsdp"),
    "block/q_proj/w": ("fsdp", "tp", None),
    "block/o_proj/w": ("tp", None, "fsdp"),
    "block/gate/kernel": ("fsdp", "tp"),
    "block/norm/scale": ("tp",),
    "stack/kernel": (None, "fsdp", "tp"),
    "stack/bias": (None, None),
}


def trained(distribution):
    model = layouts.model_on(distribution, Decoder)
    model.compile("adam", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(TOKENS, TOKENS, epochs=2, batch_size=8, shuffle=False, verbose=0).history["loss"]
    return model, losses


@pytest.mark.filterwarnings("ignore:'sharding' is deprecated")
def test_it_is_born_and_trained_as_it_says_and_its_slots_follow():
    model, losses = trained(kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh("fsdp=4,tp=2")), axis_names=NAMES))
    assert {row.path: row.axes for row in model.layout_plan.rows if row.role == "parameter"} == LAYOUTS
    assert model.layout_plan.row("stack/kernel").rule == "kernel's own ('layers', 'embed', 'mlp')"
    followed = {row.rule: row.axes for row in model.state_plan.rows if row.path.startswith("optimizer/inner/slots")}
    assert {path: followed[f"follows {path}"] for path in LAYOUTS} == LAYOUTS
    moments = [leaf for leaf in model.state_plan.rows if leaf.rule == "follows block/gate/kernel"]
    assert [row.nbytes_per_device for row in moments] == [8 * 8 * 4 // 8] * 2
    one, expected = trained(kd.DataParallel(devices=kd.list_devices()[:1]))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    model.redistribute(kd.ModelParallel(kd.LayoutMap(kd.DeviceMesh("fsdp=8,tp=1")), axis_names=dict.fromkeys(NAMES)))
    assert model.layout_plan.row("stack/kernel").axes == (None, None, None)
    assert model.layout_plan.row("block/gate/kernel").axes == ("fsdp", "tp")
    assert one.layout_plan.row("block/gate/kernel").axes == (None, None)


def test_a_ready_module_that_was_made_on_a_mesh_of_its_own():
    mesh = kd.DeviceMesh("fsdp=4,tp=2")
    with jax.set_mesh(mesh.backend_mesh):
        module = nnx.Linear(8, 4, rngs=nnx.Rngs(0), kernel_metadata={"out_sharding": ("fsdp", "tp")})
    with kd.ModelParallel(kd.LayoutMap(mesh)).scope():
        model = kd.Model.from_nnx(module)
    kernel = model.variables[1].value
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 2)
    np.testing.assert_array_equal(kernel, module.kernel[...])
