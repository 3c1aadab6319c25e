"""Variables, slots and optimizers are the same objects wherever they are found, for as long as the model."""

import copy

import jax
import numpy as np
import pytest
from flax import nnx

import keras_dist as kd
from keras_dist import layers, optimizers
from keras_dist.errors import ModelError

X, Y = np.ones((8, 2), np.float32), np.zeros((8, 1), np.float32)


def network() -> tuple[kd.Sequential, layers.Dense]:
    dense = layers.Dense(3, name="d")
    return kd.Sequential([kd.Input((2,)), dense, layers.Dense(1)]), dense


class TestOptimizers:
    """`model.optimizer` is what `compile` was given, and its state is the model's."""

    def test_it_is_the_object(self) -> None:
        model, _ = network()
        optimizer = optimizers.Adam(0.5)
        iterations = optimizer.iterations
        model.compile(optimizer, "mse")
        assert model.optimizer is optimizer and optimizer.iterations is iterations
        del iterations
        before = optimizer.variables
        model.fit(X, Y, batch_size=4, verbose=0)
        assert all(one is other for one, other in zip(optimizer.variables, before, strict=True))
        assert all(isinstance(variable, kd.Variable) for variable in [*before, *model.metrics_variables])
        del before
        assert int(optimizer.iterations) == 2 and optimizer.learning_rate == 0.5
        optimizer.learning_rate = 0.0
        weights = model.get_weights()
        model.fit(X, Y, batch_size=4, verbose=0)
        np.testing.assert_equal(model.get_weights(), weights)
        optimizer.iterations.assign(7)
        assert int(model.optimizer.iterations) == 7
        assert optimizer.get_config()["learning_rate"] == 0.0
        del model
        other, _ = network()
        other.compile(optimizer, "mse")  # nobody holds the first one any more
        assert other.optimizer is optimizer and int(optimizer.iterations) == 0

    def test_one_model_for_each(self) -> None:
        (model, _), (other, _) = network(), network()
        optimizer = optimizers.SGD(0.5, momentum=0.9)
        model.compile(optimizer, "mse")
        model.optimizer.learning_rate = 0.25
        with pytest.raises(ModelError, match="the optimizer 'sgd' is in use") as caught:
            other.compile(optimizer, "mse")
        assert "from_config" in caught.value.fix
        with pytest.raises(ModelError, match="'a' and 'b' are one object"):
            both = optimizers.SGD()
            other.compile({"a": (both, "d/.*"), "b": (both, "dense/.*")}, "mse")
        assert kd.models.clone_model(model).optimizer is not optimizer
        alone = copy.deepcopy(optimizer)
        assert not alone.built and alone.learning_rate == 0.25
        model.compile("adam", "mse")
        other.compile(optimizer, "mse")  # it was let go
        assert other.optimizer.learning_rate == 0.25 and int(optimizer.iterations) == 0

    def test_one_that_has_trained_other_variables(self) -> None:
        model, _ = network()
        optimizer = optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables[:1])
        optimizer.apply([np.zeros(v.shape, np.float32) for v in model.trainable_variables[:1]])
        with pytest.raises(ModelError, match=r"(?s)is in use.*1 steps, without slots for.*dense/kernel.*build\(model"):
            model.compile(optimizer, "mse")

    def test_one_that_trains_other_variables_than_before_warns_of_its_reset(self) -> None:
        model, layer = network()
        optimizer = optimizers.SGD(0.5, momentum=0.9)
        model.compile(optimizer, "mse")
        model.train_on_batch(X, Y)
        layer.trainable = False
        before = {id(variable) for variable in optimizer.variables}
        model.compile(optimizer, "mse")  # it has slots for the others
        assert int(optimizer.iterations) == 1
        assert {id(variable) for variable in optimizer.variables} < before
        layer.trainable = True  # no step has run since the last compile
        with pytest.warns(UserWarning, match=r"optimizer 'sgd' starts again .* after 1 steps.* no slots .*`trainable`"):
            model.compile(optimizer, "mse")
        assert int(optimizer.iterations) == 0

    @pytest.mark.parametrize(
        "make",
        [
            lambda: optimizers.Adam(0.5),
            lambda: optimizers.SGD(0.5, momentum=0.9, gradient_accumulation_steps=2),
            lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.5, momentum=0.9)),
            lambda: optimizers.MultiOptimizer(
                optimizers.OptimizerMap(optimizers.SGD(0.5, momentum=0.9), {"dense/.*": optimizers.Lion(0.5)})
            ),
        ],
    )
    def test_compile_keeps_the_variables_of_a_loop_and_their_values(self, make) -> None:
        model, _ = network()
        optimizer = make()
        for _ in range(3):
            optimizer.apply(
                [np.full(v.shape, 0.5, np.float32) for v in model.trainable_variables], model.trainable_variables
            )
        before = {id(variable): variable.numpy() for variable in optimizer.variables}
        model.compile(optimizer, "mse")
        assert {id(variable) for variable in optimizer.variables} == before.keys()
        for variable in optimizer.variables:
            np.testing.assert_array_equal(variable.numpy(), before[id(variable)])

    def test_layers_that_a_loop_has_trained_before_they_are_in_a_model(self) -> None:
        layer = kd.layers.Dense(1, name="alone")
        layer(np.ones((2, 3), np.float32))
        optimizer = optimizers.Adam(0.5)
        for _ in range(2):
            optimizer.apply([np.ones(v.shape, np.float32) for v in layer.trainable_weights], layer.trainable_weights)
        slots = {id(variable) for variable in optimizer.variables}
        model = kd.Sequential([kd.Input((3,)), layer])
        model.compile(optimizer, "mse")
        assert {id(variable) for variable in optimizer.variables} == slots and int(optimizer.iterations) == 2

    def test_one_that_was_built_for_other_variables_but_took_no_step(self) -> None:
        model, _ = network()
        optimizer = optimizers.Adam(0.5)
        optimizer.build([kd.Variable(np.ones(2, np.float32))])
        model.compile(optimizer, "mse")
        assert int(optimizer.iterations) == 0


class TestWeightDecay:
    """`exclude_from_weight_decay` goes by identity, and by names."""

    def test_of_a_model(self) -> None:
        dense = layers.Dense(1, name="bias_head")
        dense(X)
        kernel = dense.kernel  # found before the model was made
        model = kd.Sequential([kd.Input((2,)), layers.Dense(2, name="bias"), dense])
        stranger = kd.Sequential([kd.Input((2,)), layers.Dense(2, name="bias")])
        optimizer = optimizers.SGD(0.5, weight_decay=0.5)
        optimizer.exclude_from_weight_decay([kernel, stranger.weights[0]], ["bias"])
        for weight in model.weights:
            weight.assign(np.ones(weight.shape))
        model.compile(optimizer, lambda y_true, y_pred: 0 * y_pred)
        model.fit(X, Y, verbose=0)
        expected = {"bias/kernel": 0.75, "bias/bias": 1, "bias_head/kernel": 1, "bias_head/bias": 1}
        assert {weight.path: weight.numpy().max() for weight in model.weights} == expected


def test_the_state_of_a_generator_is_one_variable(tmp_path) -> None:
    layer = layers.Dropout(0.5, seed=3)
    state = layer.seed_generator.state
    model = kd.Sequential([kd.Input((2,)), layer, layers.Dense(1)])

    def check(draws: int) -> None:
        assert layer.seed_generator.state is state and layer.variables == [state]
        assert [variable for variable in model.variables if isinstance(variable, nnx.RngState)] == [state]
        assert not any(weight is state for weight in model.weights)
        assert all(isinstance(variable, kd.Variable) for variable in model.variables)
        assert state.path == "dropout/seed_generator/seed_generator_state"
        for found in (state, *jax.tree.leaves(nnx.state(model, nnx.RngState))):
            np.testing.assert_array_equal(found, [3, draws])

    model.compile("sgd", "mse")
    check(0)
    model.fit(X, Y, batch_size=4, verbose=0)
    check(2)
    model.save_weights(tmp_path / "w.weights.h5")
    model.fit(X, Y, batch_size=4, verbose=0)
    check(4)
    model.load_weights(tmp_path / "w.weights.h5")  # these files have no states of generators
    check(4)
