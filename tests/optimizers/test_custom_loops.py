"""What loops of one's own call: variables, pure steps on lists, and errors that name the way."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.errors import ModelError
from keras_dist.optimizers import SGD, Adam, LossScaleOptimizer, Optimizer

ONES = np.ones(2, "float32")


def built(optimizer: Any, *variables: Any) -> Any:
    optimizer.build(list(variables) or [kd.Variable(ONES, name="kernel")])
    return optimizer


class TestVariables:
    """`build` makes them, `stateless_apply` takes and gives their arrays."""

    def test_are_there_once_it_is_built(self) -> None:
        optimizer = Adam()
        assert not optimizer.built
        assert not hasattr(optimizer, "no_such_name")
        with pytest.raises(ModelError, match=r"build\(model.trainable_variables\).*model.optimizer.stateless_apply"):
            optimizer.stateless_apply([], [], [])
        steps = optimizer.iterations  # can be passed around before there is anything to count
        assert int(steps) == 0 and optimizer.variables[0] is steps
        steps.assign(3)
        built(optimizer)
        assert optimizer.iterations is steps and int(steps) == 3
        steps.assign(0)
        assert optimizer.built
        assert {variable.name for variable in optimizer.variables} >= {"learning_rate", "iterations", "kernel"}
        assert int(optimizer.iterations) == 0
        before = optimizer.variables
        optimizer.build([ONES, ONES])
        assert [variable.path for variable in optimizer.variables] == [variable.path for variable in before]

    @pytest.mark.parametrize("rate", [0.5, kd.optimizers.schedules.InverseTimeDecay(0.5, 1, 0.0)])
    def test_begin_with_the_steps_and_the_rate_as_in_keras(self, rate: Any) -> None:
        optimizer = built(SGD(rate, momentum=0.5))
        before = optimizer.variables
        assert [variable.name for variable in before] == ["iterations", "learning_rate", "kernel"]
        _, after = optimizer.stateless_apply(before, [ONES], [ONES])
        assert [np.asarray(value).tolist() for value in after] == [1, 0.5, [-0.5, -0.5]]
        optimizer.apply([ONES])
        assert [np.asarray(value).tolist() for value in optimizer.variables] == [1, 0.5, [-0.5, -0.5]]

    def test_take_values_of_their_shape_alone(self) -> None:
        optimizer = built(SGD(0.5, momentum=0.5))
        rate = next(variable for variable in optimizer.variables if variable.name == "learning_rate")
        rate.assign(0.25)
        (weights,), _ = optimizer.stateless_apply(optimizer.variables, [ONES], [ONES])
        np.testing.assert_allclose(weights, 0.75)
        with pytest.raises(ModelError, match="learning_rate"):
            rate.assign(ONES)
        optimizer.set_weights([variable.value + 1 for variable in optimizer.variables])
        assert float(rate) == 1.25
        with pytest.raises(ModelError, match="`weights` does not fit"):
            optimizer.set_weights([0.5])

    def test_a_copy_has_its_own(self) -> None:
        one = built(SGD(0.5))
        other = copy.deepcopy(one)
        one.apply([ONES])
        assert (int(one.iterations), int(other.iterations)) == (1, 0)


class TestStatelessApply:
    """One step on lists of arrays."""

    def test_keeps_its_scale_of_the_loss(self) -> None:
        optimizer = LossScaleOptimizer(SGD(0.5), initial_scale=8.0)
        with pytest.raises(ModelError, match="needs variables"):
            _ = optimizer.dynamic_scale
        built(optimizer)
        assert float(optimizer.dynamic_scale) == 8.0
        (weights,), state = jax.jit(optimizer.stateless_apply)(
            [variable.value for variable in optimizer.variables], [8 * ONES], [ONES]
        )
        np.testing.assert_allclose(weights, 0.5)
        (weights,), _ = optimizer.stateless_apply(state, [jnp.inf * ONES], [weights])
        np.testing.assert_allclose(weights, 0.5)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"optimizer_variables": []}, "`optimizer_variables` does not fit"),
            ({"grads": []}, "`grads` does not fit"),
            ({"grads": [np.ones(3)]}, r"(?s)shape \(3,\) at place 0.*shape \(2,\)"),
            ({"trainable_variables": [ONES, ONES]}, "(?s)`trainable_variables` does not fit.*2 arrays"),
        ],
    )
    def test_refuses_other_lists(self, change: dict[str, Any], message: str) -> None:
        optimizer = built(SGD())
        given: Any = {"optimizer_variables": optimizer.variables, "grads": [ONES], "trainable_variables": [ONES]}
        with pytest.raises(ModelError, match=message):
            optimizer.stateless_apply(**{**given, **change})


class TestApply:
    """The same step, assigned."""

    def test_only_to_the_variables_it_was_built_for(self) -> None:
        variable = kd.Variable(ONES, name="a")
        optimizer = built(SGD(0.5), variable)
        optimizer.apply([])
        assert int(optimizer.iterations) == 0
        with pytest.raises(ModelError, match="built for other variables"):
            optimizer.apply([ONES], [kd.Variable(ONES, name="b")])
        with pytest.raises(ModelError, match=r"(?s)arrays in the place of variables.*stateless_apply"):
            built(SGD(), ONES).apply([ONES])
        with pytest.raises(ModelError, match=r"(?s)traced.*stateless_apply"):
            jax.jit(lambda grad: optimizer.apply([grad]))(ONES)
        np.testing.assert_allclose(variable.value, ONES)

    @pytest.mark.parametrize("name", ["update_step", "add_variable", "assign", "save_own_variables"])
    def test_what_is_absent_names_the_way(self, name: str) -> None:
        with pytest.raises(AttributeError, match=f"{name}.*Instead, "):
            getattr(Optimizer(0.1), name)


def test_variables_without_a_gradient_stay_as_they_are() -> None:
    first, second = (kd.Variable(ONES, name=name) for name in ("first", "second"))
    optimizer = built(Adam(0.5, weight_decay=0.1), first, second)
    optimizer.apply([ONES, ONES])
    before = [np.array(variable) for variable in (first, *optimizer.variables)]
    with pytest.warns(UserWarning, match=r"Gradients do not exist for variables \['first'\]"):
        optimizer.apply_gradients([(None, first), (ONES, second)])
    kept = [
        variable.path
        for variable, old in zip(optimizer.variables, before[1:], strict=True)
        if np.array_equal(variable, old) and "first" in variable.path
    ]
    assert len(kept) == 2 and np.array_equal(first, before[0]) and int(optimizer.iterations) == 2
    assert np.all(np.asarray(second) < before[0])
    with pytest.raises(ModelError, match="was given no gradients"):
        optimizer.apply_gradients([(None, first), (None, second)])
