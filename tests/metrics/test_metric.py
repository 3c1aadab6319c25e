"""`Metric`: variables, the stateless way, and what subclasses get wrong."""

import copy
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist import DeviceMesh, errors, metrics, saving
from keras_dist.metrics.identifiers import as_metric


class Range(metrics.Metric):
    """Largest and smallest prediction; made in the first update, as shapes are known only then."""

    def __init__(self, name="range", **kwargs):
        super().__init__(name=name, **kwargs)
        self.batches = self.add_variable((), dtype="int32", name="batches")
        self.mean = metrics.Mean()

    def update_state(self, y_true, y_pred, sample_weight=None):
        if not hasattr(self, "highest"):
            self.highest = self.add_variable(y_pred.shape[1:], initializer="ones", name="highest")
        self.highest.assign(jnp.maximum(self.highest.value, y_pred.max(0)))
        self.batches.assign_add(1)
        self.mean.update_state(y_pred)

    def result(self):
        return {"highest": self.highest, "batches": self.batches.value, "mean": self.mean.result()}


BATCHES = [np.array([[0.0, 5.0], [2.0, 3.0]], "f4"), np.array([[4.0, 1.0]], "f4")]


def test_a_subclass_with_inner_metrics_and_late_variables_counts_every_batch():
    metric = Range()
    for y_pred in BATCHES:
        found = metric(None, y_pred)
    np.testing.assert_array_equal(found["highest"], [4, 5])
    assert (int(found["batches"]), float(found["mean"])) == (2, 2.5)
    assert [variable.name for variable in metric.variables] == ["batches", "highest", "total", "count"]
    metric.reset_state()
    assert not any(np.any(variable.numpy()) for variable in metric.variables)


def test_the_stateless_way_gives_the_same_inside_of_jit_and_changes_nothing():
    metric, eager = Range(), Range()
    born = metric.stateless_reset_state()
    jax.eval_shape(lambda y_pred: metric.stateless_update_state(born, None, y_pred), BATCHES[0])
    start = [v.numpy() for v in metric.variables]
    state = start
    update = jax.jit(lambda state, y_pred: metric.stateless_update_state(state, None, y_pred))
    for y_pred in BATCHES:
        state = update(state, y_pred)
        expected = eager(None, y_pred)
    found = metric.stateless_result(state)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert all(np.array_equal(v.numpy(), value) for v, value in zip(metric.variables, start, strict=True))
    assert all(isinstance(v.numpy(), np.ndarray) for v in metric.variables), "no tracer stayed behind"
    assert np.array_equal(metric.variables[1].numpy(), [1, 1]), "born inside a trace with its initial value"
    assert not any(np.any(value) for value in metric.stateless_reset_state())


def test_two_threads_see_their_own_values():
    metric = metrics.Mean()
    inside, done = threading.Event(), threading.Event()

    class Slow(metrics.Sum):
        def update_state(self, values, sample_weight=None):
            metric.update_state(values)
            inside.set()
            done.wait(5)

    slow = Slow()
    slow.inner = metric
    found = []
    thread = threading.Thread(target=lambda: found.append(slow.stateless_update_state([0.0, 0.0, 0.0], [7.0])))
    thread.start()
    inside.wait(5)
    assert float(metric.result()) == 0.0
    done.set()
    thread.join()
    assert [float(value) for value in found[0]] == [0, 7, 1]


def test_a_variable_may_begin_with_an_array():
    variable = metrics.Mean().add_variable((3,), initializer=np.arange(3.0))
    assert variable.dtype == np.float32 and variable.value.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: metrics.Metric("mean"), "`dtype` must be the name of a dtype"),
        (lambda: metrics.Metric(name=3), "`name` must be a string"),  # type: ignore[arg-type]
        (lambda: metrics.Mean().add_variable((), "zeroes"), "unknown initializer.*'zeros'"),
        (lambda: metrics.Mean().add_variable((2,), np.ones(3)), r"(?s)array of another shape.*\(2,\)"),
        (lambda: metrics.Mean().stateless_result([1.0]), "`metric_variables` does not fit"),
        (lambda: metrics.Mean().stateless_update_state([], [1.0]), "`metric_variables` does not fit"),
    ],
)
def test_misuse_is_told(wrong, message):
    with pytest.raises(errors.KerasDistError, match=message) as caught:
        wrong()
    assert caught.value.given and caught.value.fix


def test_a_constructor_that_forgets_its_base_is_told():
    class Forgetful(metrics.Metric):
        def __init__(self):
            self.total = self.add_variable(())

    with pytest.raises(errors.ModelError, match=r"Forgetful.__init__ does not call super\(\).__init__"):
        Forgetful()


def test_names_are_those_of_the_class_and_not_numbered():
    assert [metrics.AUC().name, metrics.AUC().name, metrics.TruePositives().name] == ["auc", "auc", "true_positives"]
    assert metrics.MeanIoU(2).name == "mean_io_u"


def test_a_mesh_as_of_dtensor_is_accepted_and_ignored():
    mesh = DeviceMesh("batch=8")
    metric = metrics.SparseCategoricalAccuracy(mesh=mesh)
    assert metric.get_config() == metrics.SparseCategoricalAccuracy().get_config()
    assert Range(mesh=mesh).get_config() == Range().get_config()
    for make in (metrics.AUC, metrics.MeanSquaredError, Range):
        with pytest.raises(errors.ModelError, match="`mesh` must be a DeviceMesh, or None"):
            make(mesh=3)


def test_a_metric_with_an_argument_mesh_of_its_own_gets_it():
    class OnMesh(metrics.Mean):
        def __init__(self, mesh, **kwargs):
            super().__init__(**kwargs)
            self.mesh = mesh

    metric = OnMesh(mesh="points", name="it")
    assert metric.mesh == "points" and metric.get_config() == {"mesh": "points", "name": "it"}


@pytest.mark.parametrize(
    "metric",
    [
        metrics.AUC(curve="PR", label_weights=[1.0, 2.0], thresholds=[0.5]),
        metrics.FBetaScore("macro", beta=2.0),
        metrics.MeanMetricWrapper(metrics.binary_accuracy, "right", threshold=0.2),
        metrics.OneHotIoU(3, [0, 1], dtype="float32"),
        metrics.Perplexity(from_logits=True, mask_token_id=0),
    ],
    ids=lambda metric: metric.name,
)
def test_a_config_makes_the_same_metric(metric):
    config = metrics.serialize(metric)
    again = saving.deserialize_keras_object(copy.deepcopy(config))
    assert type(again) is type(metric) and again.name == metric.name and again.dtype == metric.dtype
    assert metrics.serialize(again) == config


def test_counts_stay_exact_beyond_what_float32_counts_by_one():
    update = jax.jit(lambda state, values: metrics.Mean().stateless_update_state(state, values))
    state = [np.float32(2**24), np.float32(2**24)]
    for _ in range(3):
        state = update(state, np.ones(512, "f4"))
    assert [float(value) for value in state] == [2**24 + 3 * 512] * 2


def test_a_weight_of_a_metric_is_a_scalar_by_default():
    class Counts(metrics.Metric):
        def __init__(self):
            super().__init__(name="counts")
            self.count = self.add_weight(name="count", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.count.assign_add(len(y_true))

        def result(self):
            return self.count

    metric = Counts()
    metric.update_state([1, 2, 3], None)
    assert metric.count.name == "count" and float(metric.result()) == 3.0


@pytest.mark.parametrize("name", ["accuracy", "acc", "crossentropy", "ce"])
def test_metrics_that_choose_by_shapes_come_back_from_their_configs(name):
    metric = as_metric(name)
    assert type(metric).from_config(metric.get_config()).name == name


def test_a_subclass_says_which_direction_is_better():
    class Shortfall(metrics.Mean, direction="down"):
        pass

    class Missed(Shortfall):
        pass

    assert [cls._direction for cls in (metrics.Mean, Shortfall, Missed, metrics.AUC)] == [None, "down", "down", "up"]
