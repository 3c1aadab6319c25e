"""Every metric gives Keras's numbers, after any batches."""

import functools
import importlib
import warnings
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import keras_dist as kd
from tests.parity.compare import compare

BINARY, ONE_HOT, SPARSE, REAL, POSITIVE, DISTRIBUTION, MASKS = (
    "binary",
    "one-hot",
    "sparse",
    "real",
    "positive",
    "distribution",
    "masks",
)
CLASSES = 4

counts = [{}, {"thresholds": 0.3}, {"thresholds": [0.1, 0.5, 0.8]}, {"thresholds": [0.0, 0.5, 1.0]}]
ranked = [*counts, {"top_k": 2}, {"class_id": 1}, {"top_k": 1, "class_id": 2}, {"top_k": 3, "thresholds": 0.4}]
points = [{}, {"num_thresholds": 1}, {"num_thresholds": 7}, {"class_id": 2, "num_thresholds": 20}]
curves = [
    {"curve": curve, "summation_method": method, "num_thresholds": n}
    for curve in ("ROC", "PR", "PRGAIN")
    for method in ("interpolation", "minoring", "majoring")
    for n in (2, 11)
]
areas = [
    *curves,
    {"thresholds": [0.2, 0.35, 0.9]},
    {"from_logits": True},
    {"label_weights": [1.0, 2.0, 0.5, 0.0]},
    *({"multi_label": True, **options} for options in curves[::3]),
    {"multi_label": True, "num_labels": CLASSES, "label_weights": [1.0, 2.0, 0.5, 0.0], "curve": "PR"},
    {"multi_label": True, "thresholds": [0.2, 0.9]},
]
averages = [{"average": a, "threshold": t} for a in (None, "micro", "macro", "weighted") for t in (None, 0.4)]
smoothing = [{}, {"label_smoothing": 0.1}, {"from_logits": True}, {"from_logits": True, "label_smoothing": 0.2}]
top = [{"k": 1}, {"k": 2}, {}]
masks = [{"num_classes": CLASSES}, {"num_classes": CLASSES, "ignore_class": 1}, {"num_classes": 3}]
targeted = [{"target_class_ids": [0, 2], **options} for options in masks]
r2_scores = [
    {"class_aggregation": aggregation, "num_regressors": n}
    for aggregation in (None, "uniform_average", "variance_weighted_average")
    for n in (0, 1, 3, 1000)
]

CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "Accuracy": (BINARY, [{}]),
    "BinaryAccuracy": (BINARY, [{}, {"threshold": 0.3}]),
    "CategoricalAccuracy": (ONE_HOT, [{}]),
    "SparseCategoricalAccuracy": (SPARSE, [{}]),
    "TopKCategoricalAccuracy": (ONE_HOT, top),
    "SparseTopKCategoricalAccuracy": (SPARSE, top),
    "TruePositives": (BINARY, counts),
    "FalsePositives": (BINARY, counts),
    "TrueNegatives": (BINARY, counts),
    "FalseNegatives": (BINARY, counts),
    "Precision": (BINARY, ranked),
    "Recall": (BINARY, ranked),
    "AUC": (BINARY, areas),
    "SensitivityAtSpecificity": (BINARY, [{"specificity": 0.4, **options} for options in points]),
    "SpecificityAtSensitivity": (BINARY, [{"sensitivity": 0.7, **options} for options in points]),
    "PrecisionAtRecall": (BINARY, [{"recall": 0.5, **options} for options in points]),
    "RecallAtPrecision": (BINARY, [{"precision": 0.6, **options} for options in points]),
    "F1Score": (BINARY, averages),
    "FBetaScore": (BINARY, [{**options, "beta": beta} for options in averages for beta in (0.5, 2.0)]),
    "MeanSquaredError": (REAL, [{}]),
    "RootMeanSquaredError": (REAL, [{}]),
    "MeanAbsoluteError": (REAL, [{}]),
    "MeanAbsolutePercentageError": (POSITIVE, [{}]),
    "MeanSquaredLogarithmicError": (POSITIVE, [{}]),
    "CosineSimilarity": (REAL, [{}]),
    "LogCoshError": (REAL, [{}]),
    "R2Score": (REAL, r2_scores),
    "PearsonCorrelation": (REAL, [{}]),
    "ConcordanceCorrelation": (REAL, [{}]),
    "Hinge": (REAL, [{}]),
    "SquaredHinge": (REAL, [{}]),
    "CategoricalHinge": (ONE_HOT, [{}]),
    "KLDivergence": (DISTRIBUTION, [{}]),
    "Poisson": (POSITIVE, [{}]),
    "BinaryCrossentropy": (BINARY, smoothing),
    "CategoricalCrossentropy": (ONE_HOT, smoothing),
    "SparseCategoricalCrossentropy": (SPARSE, [{}, {"from_logits": True}, {"ignore_class": 1}]),
    "IoU": (MASKS, targeted),
    "MeanIoU": (MASKS, masks),
    "BinaryIoU": (BINARY, [{}, {"target_class_ids": [1], "threshold": 0.3}]),
    "OneHotIoU": (ONE_HOT, targeted[:2]),
    "OneHotMeanIoU": (ONE_HOT, masks[:2]),
}


def batch(kind: str, rows: int, rng: np.random.Generator, logits: bool) -> tuple[np.ndarray, np.ndarray]:
    """Targets and predictions; scores repeat and touch 0, 1 and the thresholds."""
    shape = (rows, CLASSES)
    indices = rng.integers(0, CLASSES, rows)
    scores = rng.choice(np.linspace(0, 1, 11, dtype="f4"), shape) if rng.random() < 0.5 else rng.random(shape, "f4")
    positive = rng.uniform(0.1, 3, shape).astype("f4")
    distribution = positive / positive.sum(-1, keepdims=True)
    if logits:
        scores = distribution = rng.normal(size=shape).astype("f4")
    one_hot = np.eye(CLASSES, dtype="f4")[indices]
    return {
        BINARY: (rng.integers(0, 2, shape).astype("f4"), scores),
        ONE_HOT: (one_hot, distribution),
        SPARSE: (indices[:, None] if rng.random() < 0.5 else indices, distribution),
        REAL: (rng.normal(size=shape).astype("f4"), rng.normal(size=shape).astype("f4")),
        POSITIVE: (rng.uniform(0.1, 3, shape).astype("f4"), positive),
        DISTRIBUTION: (rng.dirichlet(np.ones(CLASSES), rows).astype("f4"), distribution),
        MASKS: (rng.integers(0, CLASSES, (rows, 3)), rng.integers(0, CLASSES, (rows, 3))),
    }[kind]


def sample_weight(name: str, how: str, y_pred: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    if how == "none":
        return None
    shape = {"rows": y_pred.shape[:1], "column": (len(y_pred), 1), "values": y_pred.shape}[how]
    if "IoU" in name:
        return rng.integers(0, 3, y_pred.shape if name != "OneHotIoU" and name != "OneHotMeanIoU" else shape[:1])
    return rng.uniform(0, 2, shape).astype("f4")


def takes_values(name: str) -> bool:
    """Whether Keras takes a weight for each prediction."""
    return name in (
        *("TruePositives", "FalsePositives", "TrueNegatives", "FalseNegatives", "Accuracy", "BinaryAccuracy"),
        *("RootMeanSquaredError", "R2Score", "AUC"),
    )


def agree(keras: Any, name: str, options: dict[str, Any], batches: list[tuple[Any, ...]]) -> None:
    """After these batches our metric gives what Keras's does, and holds nothing."""
    ours, theirs = (getattr(library.metrics, name)(**options) for library in (kd, keras))
    if not getattr(theirs, "_built", True):  # by what it first sees
        shapes = [array.shape for array in batches[0][:2]]
        theirs._build(*(shapes[1:] if name == "AUC" else shapes))

    def result(metric: Any, state: Any, batches: Any) -> Any:
        for batch in batches:
            state = metric.stateless_update_state(state, *batch)
        return metric.stateless_result(state)

    def check(found: Any, expected: Any) -> None:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert all(not np.any(variable.numpy()) for variable in ours.variables)
        assert [v.shape for v in ours.variables] == [tuple(v.shape) for v in theirs.variables]

    # Keras cannot trace areas of labels between thresholds of one's own, nor R2 with regressors
    is_traceable = name != "R2Score" and not {"multi_label", "thresholds"} <= options.keys()
    states = ours.stateless_reset_state(), [variable.value for variable in theirs.variables]
    if is_traceable:
        both = [(ours, states[0]), (theirs, states[1])]
        compare(lambda batches: [result(*one, batches) for one in both], batches, check=check, note=f"{name} {options}")
        return
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", UserWarning)  # adjusted R2 of few rows
        check(*(result(metric, state, batches) for metric, state in zip((ours, theirs), states, strict=True)))


@pytest.mark.parametrize("name", CASES)
@hypothesis.given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_it_gives_kerass_numbers(keras, name, data, seed):
    kind, choices = CASES[name]
    options = data.draw(st.sampled_from(choices))
    rows = data.draw(st.lists(st.sampled_from([1, 5]), min_size=1, max_size=3))
    ways = ["none", "rows", *(["values"] if takes_values(name) else [])]
    how = data.draw(st.sampled_from(ways))
    rng = np.random.default_rng(seed)
    batches = [batch(kind, n, rng, options.get("from_logits", False)) for n in rows]
    weighted = [(*arrays, sample_weight(name, how, arrays[1], rng)) for arrays in batches]
    agree(keras, name, options, weighted)


SHAPES = [((), [()]), ((3,), [(), (3,), (3, 1)]), ((3, 1), [(3,), (3, 1)]), ((3, 2, 2), [(), (3,), (3, 2), (3, 2, 2)])]


@pytest.mark.parametrize("name", ["Mean", "Sum"])
@hypothesis.given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_values_of_any_shape_are_weighed_as_in_keras(keras, name, data, seed):
    shape, shapes = data.draw(st.sampled_from(SHAPES))
    weight_shape = data.draw(st.sampled_from([None, *shapes]))
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(2):
        weight = None if weight_shape is None else rng.uniform(0, 2, weight_shape).astype("f4")
        batches.append((np.asarray(rng.normal(size=shape), "f4"), weight))
    agree(keras, name, {}, batches)


SEQUENCES: list[tuple[str, dict[str, Any], str]] = [
    ("SparseCategoricalAccuracy", {}, SPARSE),
    ("SparseTopKCategoricalAccuracy", {"k": 2}, SPARSE),
    ("CategoricalAccuracy", {}, ONE_HOT),
    ("TopKCategoricalAccuracy", {"k": 2}, ONE_HOT),
    ("SparseCategoricalCrossentropy", {"from_logits": True}, SPARSE),
    ("CategoricalCrossentropy", {}, ONE_HOT),
    ("MeanSquaredError", {}, ONE_HOT),
    ("RootMeanSquaredError", {}, ONE_HOT),
    ("CosineSimilarity", {"axis": 1}, ONE_HOT),
    ("PearsonCorrelation", {"axis": 1}, ONE_HOT),
    ("BinaryAccuracy", {}, ONE_HOT),
    ("Precision", {"thresholds": [0.2, 0.4]}, ONE_HOT),
    ("AUC", {"curve": "PR"}, ONE_HOT),
    ("OneHotMeanIoU", {"num_classes": CLASSES}, ONE_HOT),
]


@pytest.mark.parametrize(("name", "options", "kind"), SEQUENCES, ids=[name for name, _, _ in SEQUENCES])
@hypothesis.given(weighted=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_sequences_give_kerass_numbers(keras, name, options, kind, weighted, seed):
    rng = np.random.default_rng(seed)
    per_step = name not in ("CosineSimilarity", "PearsonCorrelation", "OneHotMeanIoU")
    batches = []
    for _ in range(2):
        indices, y_pred = rng.integers(0, CLASSES, (2, 5)), rng.dirichlet(np.ones(CLASSES), (2, 5)).astype("f4")
        y_true = indices if kind == SPARSE else np.eye(CLASSES, dtype="f4")[indices]
        batches.append((y_true, y_pred, rng.uniform(0, 2, (2, 5)).astype("f4") if weighted and per_step else None))
    agree(keras, name, options, batches)


@pytest.mark.parametrize("column", [False, True])
def test_sorted_classes_and_vectors_give_kerass_numbers(keras, column):
    rng = np.random.default_rng(0)
    targets, ids = rng.integers(0, 6, (4, 1) if column else 4), np.argsort(rng.random((4, 6)), axis=-1)
    for k in (1, 2, 5):
        options = {"k": k, "from_sorted_ids": True}
        agree(keras, "SparseTopKCategoricalAccuracy", options, [(targets, ids)])
    binary, scores = rng.integers(0, 2, (4, 1) if column else 4), rng.random(4, "f4")
    for name in ("BinaryAccuracy", "AUC", "Precision", "MeanAbsoluteError", "TruePositives"):
        agree(keras, name, {}, [(binary, scores)])


@hypothesis.given(
    seed=st.integers(0, 2**32 - 1), from_logits=st.booleans(), masked=st.booleans(), weighted=st.booleans()
)
def test_perplexity_is_the_exponential_of_the_mean_over_tokens_that_count(keras, seed, from_logits, masked, weighted):
    rng = np.random.default_rng(seed)
    metric = kd.metrics.Perplexity(from_logits=from_logits, mask_token_id=0 if masked else None)
    batches = []
    for _ in range(2):
        y_true, weight = rng.integers(0, 5, (3, 4)), rng.uniform(0.1, 2, (3, 4)).astype("f4")
        y_pred = rng.normal(size=(3, 4, 5)) if from_logits else rng.dirichlet(np.ones(5), (3, 4))
        batches.append((y_true, y_pred.astype("f4"), weight if weighted else np.ones_like(weight)))

    def both(batches: Any) -> Any:
        state, total, count = metric.stateless_reset_state(), 0.0, 0.0
        for y_true, y_pred, weight in batches:
            values = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=from_logits)
            counts = weight * ((y_true != 0) if masked else 1.0)
            total, count = total + (values * counts).sum(), count + counts.sum()
            state = metric.stateless_update_state(state, y_true, y_pred, weight if weighted else None)
        return metric.stateless_result(state), jax.numpy.exp(total / count)

    compare(both, batches, check=functools.partial(np.testing.assert_allclose, rtol=1e-4))


def test_every_metric_of_keras_is_there_with_its_names(keras):
    public = {name for name in dir(keras.metrics) if not name.startswith("_")}
    assert public <= set(kd.metrics.__all__), public - set(kd.metrics.__all__)
    known = importlib.import_module("keras.src.metrics").ALL_OBJECTS_DICT
    for identifier, cls in known.items():
        try:
            expected = cls()
        except (TypeError, NotImplementedError):
            continue
        if identifier.lower() != "metric":
            ours = kd.metrics.get(identifier)
            assert type(kd.metrics.deserialize(keras.metrics.serialize(expected))) is type(ours)
            assert type(ours).__name__ == type(expected).__name__
            assert expected.name.startswith(ours.name)  # Keras may have numbered it
