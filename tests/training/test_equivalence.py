"""`kd.check_equivalence`: passes for honest models, and names the first variable that differs for others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist.errors import EquivalenceError, ModelError
from tests import layouts
from tests.networks import LOSS, Noisy, Plain, TwoInputs, blobs
from tests.soak import LARGE, repeated

BATCH = blobs(30)


def distributions():
    return [layouts.on(name) for name in ("one device", "data=2,model=4")]


def current_mesh():
    current: Any = kd.distribution.distribution()
    return current.device_mesh.size


@repeated
def test_an_honest_model_passes_and_the_report_says_how_near():
    kd.set_distribution(kd.DataParallel())
    names = layouts.ALL if LARGE else ["one device", "data=2,model=4"]
    compared = [layouts.on(name) for name in names]
    report = kd.check_equivalence(Noisy, BATCH, LOSS, compared, seed=3)
    assert kd.distribution.distribution() == kd.DataParallel(), "the current one stays"
    assert report.distributions == tuple(compared)
    assert len(report.losses) == len(compared)
    np.testing.assert_allclose(report.losses, report.losses[0], atol=1e-5)
    assert 0 <= report.largest_gradient_difference <= 1e-5
    model = kd.Model.from_nnx(Noisy, seed=3)
    model.compile("sgd", loss=LOSS)
    assert model.train_on_batch(*BATCH) == pytest.approx(report.losses[0], abs=1e-6), "that of the first step of fit"


def test_weights_call_and_pytrees_are_taken():
    x = {"a": BATCH[0], "b": BATCH[0][:, :2]}
    report = kd.check_equivalence(
        TwoInputs,
        (x, None, np.full(30, 2.0, "f4")),
        lambda y_true, y_pred: y_pred.mean(-1),
        [kd.DataParallel(devices=kd.list_devices()[:1]), kd.DataParallel()],
        call=lambda module, x, training, rngs: module(x)["sum"],
    )
    assert report.losses[0] != 0


def test_initial_values_that_depend_on_the_mesh_are_named():
    def cheat(rngs):
        module = Plain(rngs)
        module.d2.kernel[...] = module.d2.kernel[...] * (1 + 1e-7 * current_mesh())
        return module

    with pytest.raises(EquivalenceError, match="the initial value of 'd2/kernel' differs") as caught:
        kd.check_equivalence(cheat, BATCH, LOSS, distributions())
    assert "shape=(2, 4)" in caught.value.given and "shape=(1,)" in caught.value.expected and caught.value.fix
    assert isinstance(caught.value, AssertionError)


@pytest.mark.parametrize("direction", [1, -1])
def test_a_variable_that_only_one_of_them_has_is_named(direction):
    def cheat(rngs):
        module: Any = Plain(rngs)
        if current_mesh() == 8:
            module.extra = nnx.Param(jnp.zeros(3))
        return module

    both = [layouts.one_device(), kd.DataParallel()][::direction]
    with pytest.raises(EquivalenceError, match="'extra'"):
        kd.check_equivalence(cheat, BATCH, LOSS, both)


def test_a_loss_that_depends_on_the_mesh_is_found():
    class Cheat(Plain):
        factor = 1.0

        def __call__(self, x):
            return super().__call__(x) * self.factor

    def factory(rngs):
        module = Cheat(rngs)
        module.factor = float(current_mesh())
        return module

    with pytest.raises(EquivalenceError, match="the loss of one step differs") as caught:
        kd.check_equivalence(factory, BATCH, LOSS, distributions())
    assert "DataParallel" in caught.value.expected and "ModelParallel" in caught.value.given


def test_a_gradient_that_depends_on_the_mesh_is_named():
    @jax.custom_vjp
    def scaled_backwards(x, factor):
        return x

    scaled_backwards.defvjp(lambda x, factor: (x, factor), lambda factor, g: (g * factor, None))

    class Cheat(Plain):
        factor = 1.0

        def __call__(self, x):
            return self.d2(scaled_backwards(nnx.tanh(self.d1(x)), jnp.float32(self.factor)))

    def factory(rngs):
        module = Cheat(rngs)
        module.factor = 1 + 1e-3 * current_mesh()
        return module

    with pytest.raises(EquivalenceError, match="the gradient of 'd1/") as caught:
        kd.check_equivalence(factory, BATCH, LOSS, distributions())
    assert "of the largest gradient" in caught.value.given
    kd.check_equivalence(factory, BATCH, LOSS, distributions(), tolerance=0.1)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_distributions_are_refused(count):
    with pytest.raises(ModelError, match="nothing to compare"):
        kd.check_equivalence(Plain, BATCH, LOSS, distributions()[:count])


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"batch": BATCH[0]}, "batch"),
        ({"batch": (BATCH[0],)}, "batch"),
        ({"factory": Plain(nnx.Rngs(0))}, "factory"),
        ({"distributions": ["one", "two"]}, "distributions"),
        ({"distributions": 2}, "distributions"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(changes, argument):
    given: Any = {"factory": Plain, "batch": BATCH, "loss": LOSS, "distributions": [kd.DataParallel()] * 2, **changes}
    with pytest.raises(ModelError, match=f"`{argument}`") as caught:
        kd.check_equivalence(**given)
    assert caught.value.given and caught.value.fix
