"""Chains of optax that users pass to `compile`: on every layout the steps of plain optax in a loop, on one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from optax import contrib

import keras_dist as kd
from keras_dist import optimizers
from keras_dist.errors import ModelError
from tests import by_hand, layouts
from tests.networks import Plain, blobs
from tests.soak import LARGE, repeated

X, Y = blobs(83)  # batches of 32, 32 and 19 rows
EPOCHS = 4


def sam(**options: Any) -> Any:
    return contrib.sam(optax.sgd(0.1), optax.chain(contrib.normalize(), optax.sgd(0.05)), **options)


# What reads whole arrays, all of them together, or the loss: norms, ratios, distances from the start, factors.
OF_WHOLE_ARRAYS: dict[str, Any] = {
    "prodigy": lambda: contrib.prodigy(1.0, estim_lr0=1e-2),
    "lamb": lambda: optax.lamb(0.01, weight_decay=0.01),
    "lars": lambda: optax.lars(0.5, 0.01, momentum=0.9),
    "adaptive_grad_clip": lambda: optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.5, momentum=0.9)),
    "adafactor": lambda: optax.adafactor(0.05, min_dim_size_to_factor=4, momentum=0.9),
    "mechanize": lambda: contrib.mechanize(optax.adam(0.01), s_init=0.1),
    "dog": lambda: contrib.dog(1.0, init_step=("heuristic", 1e-2)),
    "dowg": lambda: contrib.dowg(1.0, init_estim_sq_dist=1e-2),
    "dadapt_adamw": lambda: contrib.dadapt_adamw(1.0, estim_lr0=1e-3),
    "novograd": lambda: optax.novograd(0.01),
    "fromage": lambda: optax.fromage(0.05),
    "muon": lambda: contrib.muon(0.01),
    "galore": lambda: contrib.galore(0.01, rank=2),
    "sm3": lambda: optax.sm3(0.1),
    "clip_by_global_norm": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.01)),
    "clip_by_block_rms": lambda: optax.chain(optax.clip_by_block_rms(0.01), optax.adam(0.01)),
    "normalize": lambda: optax.chain(contrib.normalize(), optax.sgd(0.1)),
    "scale_by_param_block_norm": lambda: optax.chain(optax.scale_by_param_block_norm(), optax.sgd(0.1)),
    "centralize": lambda: optax.chain(optax.centralize(), optax.adam(0.01)),
    "sam": sam,
    "sam, opaque": lambda: sam(opaque_mode=True),
    "sam in a chain": lambda: optax.chain(optax.clip(1.0), sam(opaque_mode=True)),
    "sophia": lambda: contrib.sophia(0.01, update_interval=2),
    "momo": lambda: contrib.momo(),
    "momo_adam": lambda: contrib.momo_adam(),
    "polyak_sgd": lambda: optax.polyak_sgd(0.1),
    "backtracking": lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5, store_grad=True)),
}
ELEMENTWISE: dict[str, Any] = {
    "schedule_free_adamw": lambda: contrib.schedule_free_adamw(0.01, warmup_steps=2),
    "schedule_free_sgd": lambda: contrib.schedule_free_sgd(0.1),
    "adopt": lambda: contrib.adopt(0.01),
    "cocob": lambda: contrib.cocob(),
    "madgrad": lambda: contrib.madgrad(0.01),
    "ademamix": lambda: contrib.ademamix(0.01),
    "simplified_ademamix": lambda: contrib.simplified_ademamix(0.01),
    "acprop": lambda: contrib.acprop(0.01),
    "lion": lambda: optax.lion(0.001),
    "adan": lambda: optax.adan(0.01),
    "rprop": lambda: optax.rprop(0.01),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.01), 2, should_skip_update_fn=optax.skip_not_finite),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.01), 3),
    "apply_every": lambda: optax.chain(optax.adam(0.01), optax.apply_every(2)),
}
CHAINS = OF_WHOLE_ARRAYS | ELEMENTWISE
FIRST = ["prodigy", "lamb", "adaptive_grad_clip", "adafactor", "mechanize", "dog", "sam", "sophia", "momo", "adopt"]
"""Chains that `make test-all` tries; `make soak` tries all."""
TAKES = {
    "sam, opaque": ["grad_fn"],
    "sam in a chain": ["grad_fn"],
    "sophia": ["obj_fn"],
    "backtracking": ["value", "grad", "value_fn"],
    **{key: ["value"] for key in ["momo", "momo_adam", "polyak_sgd"]},
}
"""Arguments of `update` beside the gradients: optax documents them one by one."""


def by_plain_optax(name: str, batches: Any) -> dict[str, np.ndarray]:
    """The weights after these batches, in the documented loop of optax."""
    graphdef, state = nnx.split(Plain(nnx.Rngs(4)))
    transformation, weights = CHAINS[name](), nnx.to_pure_dict(state)

    @jax.jit
    def step(weights: Any, slots: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            state = nnx.state(nnx.eval_shape(lambda: Plain(nnx.Rngs(4))))
            nnx.replace_by_pure_dict(state, weights)
            return jnp.mean(by_hand.cross_entropy(y, nnx.merge(graphdef, state)(x)))

        value, grads = jax.value_and_grad(loss)(weights)
        known = {"value": value, "grad": grads, "value_fn": loss, "obj_fn": loss}
        known["grad_fn"] = jax.grad(lambda weights, _: loss(weights))  # type: ignore[assignment]
        extra = {argument: known[argument] for argument in TAKES.get(name, [])}
        updates, slots = transformation.update(grads, slots, weights, **extra)
        return optax.apply_updates(weights, updates), slots

    slots = transformation.init(weights)
    for x, y in batches:
        weights, slots = step(weights, slots, x, y)
    return {f"{layer}/{key}": np.asarray(value) for layer, arrays in weights.items() for key, value in arrays.items()}


def by_fit(optimizer: Any, where: str, rows: int, epochs: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    model = layouts.plain_on(where, seed=4)
    before = {variable.path: variable.numpy() for variable in model.trainable_variables}
    model.compile(optimizer, loss=by_hand.cross_entropy)
    model.fit(X[:rows], Y[:rows], batch_size=32, epochs=epochs, shuffle=False, verbose=0)
    return {variable.path: variable.numpy() for variable in model.trainable_variables}, before


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], before: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=3e-6, err_msg=path)
    assert max(np.abs(expected[path] - before[path]).max() for path in expected) > 3e-3, "too little to see a mistake"


@pytest.mark.filterwarnings("ignore:.*weights all batches alike")  # as plain optax does
@pytest.mark.first_cases(1)
@repeated
@pytest.mark.parametrize("name", CHAINS if LARGE else FIRST)
def test_a_chain_takes_the_steps_of_plain_optax_on_every_layout(name: str) -> None:
    expected = by_plain_optax(name, by_hand.batches_in_order(32, X, Y) * EPOCHS)
    for where in ("data=2,model=4", "fully data=8", "one device")[: 3 if name in OF_WHOLE_ARRAYS else 1]:
        found, before = by_fit(CHAINS[name](), where, len(X), EPOCHS)
        assert_same(found, expected, before)


@pytest.mark.first_cases(1)
@repeated
@pytest.mark.parametrize(
    "name", ["lars", "prodigy", "lamb", *["adaptive_grad_clip", "adafactor", "mechanize", "dog", "sam"] * LARGE]
)
def test_accumulated_gradients_take_the_steps_of_large_batches(name: str) -> None:
    """Batches of 32 and 19 rows are one of 51; `optax.MultiSteps` would weight both alike."""
    expected = by_plain_optax(name, [(X[:51], Y[:51])] * 4)
    optimizer = optimizers.OptaxOptimizer(CHAINS[name](), gradient_accumulation_steps=2)
    found, before = by_fit(optimizer, "data=2,model=4", 51, 4)
    assert_same(found, expected, before)


@pytest.mark.parametrize("name", TAKES)
def test_a_chain_that_needs_the_loss_cannot_accumulate(name: str) -> None:
    optimizer = optimizers.OptaxOptimizer(CHAINS[name](), gradient_accumulation_steps=2)
    weights = {"w": jnp.ones(2)}
    extra = {"value": 1.0, "grad": weights, "value_fn": lambda weights: weights["w"].sum()}
    with pytest.raises(ModelError, match="needs the loss, and cannot accumulate gradients"):
        optimizer.update(weights, optimizer.init(weights), weights, **extra)


def test_arguments_that_are_missing_are_errors_of_optax() -> None:
    optimizer, weights = optimizers.OptaxOptimizer(contrib.momo()), {"w": jnp.ones(2)}
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'value'"):
        optimizer.update(weights, optimizer.init(weights), weights, other=1)


def test_private_gradients_need_gradients_of_examples() -> None:
    model = kd.Sequential([kd.Input((2,)), kd.layers.Dense(1)])
    with pytest.raises(ModelError, match=r"gradient of each example(.|\n)*dpsgd(.|\n)*jax.vmap"):
        model.compile(contrib.differentially_private_aggregate(1.0, 0.1, key=0), "mse")


KNOWN = {"stack/kernel": ("layers", "inputs", "outputs"), "stack/bias": ("layers", None)}
APART = ["prodigy", "mechanize", "dog", "schedule_free_adamw", "clip_by_global_norm", "adopt", "cocob", "apply_every"]
AS_ONE = ["lars", "adaptive_grad_clip", "novograd", "muon", "galore", "fromage", "centralize"]


class TestStacks:
    """Slices of a stack are weights, unless a chain reads the stack as one; then it warns."""

    @pytest.mark.first_cases(2)
    @pytest.mark.parametrize("name", [APART[0], AS_ONE[0], *APART[1:], *AS_ONE[1:]])
    def test_a_warning_where_slices_are_not_apart(self, name: str, recwarn: Any) -> None:
        optimizers.OptaxOptimizer(CHAINS[name]()).know_dims(KNOWN)
        assert [w for w in recwarn if "may treat a stack" in str(w.message)] or name not in AS_ONE
        assert not recwarn.list or name in AS_ONE

    @pytest.mark.parametrize("steps", [4, 10])
    def test_a_chain_that_waits_for_batches_is_seen_to_read_a_stack_as_one(self, steps: int) -> None:
        chain = optax.MultiSteps(optax.lars(0.5), steps).gradient_transformation()
        with pytest.warns(UserWarning, match="may treat a stack of layers as one weight"):
            optimizers.OptaxOptimizer(chain).know_dims(KNOWN)

    @pytest.mark.first_cases(1)
    @pytest.mark.parametrize(("name", "where"), [("prodigy", "data=8"), ("mechanize", "data=2,model=4")])
    def test_a_stack_trains_as_its_layers(self, name: str, where: str) -> None:
        rng, found = np.random.default_rng(1), []
        kernels, biases = (rng.normal(size=(3, *shape)).astype("float32") for shape in ((8, 8), (8,)))
        kd.set_distribution(kd.FullySharded(kd.DeviceMesh(where)))
        for is_stacked in (True, False):
            block = lambda: kd.layers.Dense(8, "tanh")  # noqa: E731
            body = [kd.layers.Stack(block, 3)] if is_stacked else [block() for _ in range(3)]
            model = kd.Sequential([kd.Input((8,)), *body])
            pairs = zip(kernels, biases, strict=True)
            model.set_weights([kernels, biases] if is_stacked else [each for pair in pairs for each in pair])
            model.compile(CHAINS[name](), "mse")
            model.fit(X[:19], X[:19], batch_size=8, epochs=3, shuffle=False, verbose=0)
            weights = model.get_weights()
            found.append(weights if is_stacked else [np.stack(weights[::2]), np.stack(weights[1::2])])
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert np.abs(found[0][0] - kernels).max() > 3e-3
