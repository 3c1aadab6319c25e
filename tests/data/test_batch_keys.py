"""`compile(batch_keys=...)`: data sets whose batches or examples are dicts."""

import collections
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
import pytest

import keras_dist as kd
from keras_dist import data, layers
from keras_dist.errors import DataError, ModelError

RANDOM = np.random.default_rng(0)
IDS, LABELS = RANDOM.integers(0, 7, (2, 22, 5))
MASK = (RANDOM.random((22, 5)) < 0.5).astype("float32")
COLUMNS = {"input_ids": IDS, "labels": LABELS, "attention_mask": MASK, "token_type_ids": IDS * 0}
KEYS = {"x": "input_ids", "y": "labels", "sample_weight": "attention_mask"}


def rows(start: int, stop: int) -> dict[str, np.ndarray]:
    return {name: column[start:stop] for name, column in COLUMNS.items()}


class Loader:
    """Batches of 8, 8 and 6 rows, as those of torch."""

    def __init__(self, kind: Any = dict) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return (self.kind(rows(start, min(start + 8, 22))) for start in range(0, 22, 8))


class Lists(Loader):
    """Batches of lists, as `iter(batch_size=8)` of a Hugging Face data set gives them."""

    def __iter__(self) -> Iterator[Any]:
        return ({name: column.tolist() for name, column in batch.items()} for batch in super().__iter__())


class Numbered(kd.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return rows(index * 8, min(index * 8 + 8, 22))


class Examples:
    """Examples by number, of lists, as those of a Hugging Face data set."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, number: int) -> Any:
        return {name: column[number].tolist() for name, column in COLUMNS.items()}


class ListsOfExamples(Examples):
    at_once = 0

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        type(self).at_once += 1
        return [self[number] for number in numbers]


def grain_dataset() -> Any:
    return grain.MapDataset.source(Examples()).map(lambda one: {k: np.asarray(v) for k, v in one.items()}).batch(8)


def model_of(**options: Any) -> kd.Model:
    kd.utils.set_random_seed(0)
    model = kd.Sequential([kd.Input((5,), dtype="int32"), layers.Embedding(7, 4), layers.Dense(7)])
    loss = kd.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile("sgd", loss, **options)
    return model


SOURCES = {
    "mapping": (lambda: Loader(collections.UserDict), {}),
    "lists": (Lists, {}),
    "generator": (lambda: iter(Loader()), {}),
    "PyDataset": (Numbered, {"shuffle": False}),
    "lists of examples": (ListsOfExamples, {"batch_size": 8, "shuffle": False}),
    "DataLoader": (lambda: data.DataLoader(Examples(), batch_size=8), {}),
    "grain": (grain_dataset, {"shuffle": False}),
    "arrays": (lambda: COLUMNS, {"batch_size": 8, "shuffle": False}),
}


@pytest.fixture(scope="module")
def with_arrays() -> tuple[Any, ...]:
    """The losses of an epoch and of its validation, of an evaluation, and what is predicted then."""
    model, weighted = model_of(), {"batch_size": 8, "sample_weight": MASK, "verbose": 0}
    history = model.fit(IDS, LABELS, shuffle=False, validation_data=(IDS, LABELS, MASK), **weighted).history
    return history, model.evaluate(IDS, LABELS, **weighted), model.predict(IDS, batch_size=8, verbose=0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("make", "options"), SOURCES.values(), ids=SOURCES)
def test_it_is_as_with_arrays(make: Any, options: Any, with_arrays: Any) -> None:
    model, (history, loss, outputs) = model_of(batch_keys=KEYS), with_arrays
    validation = COLUMNS if isinstance(make(), dict) else Loader()
    found = model.fit(make(), verbose=0, validation_data=validation, **options).history
    assert found["loss"] == history["loss"]
    np.testing.assert_allclose(found["val_loss"], history["val_loss"], rtol=1e-6)
    size = {name: value for name, value in options.items() if name == "batch_size"}
    np.testing.assert_allclose(model.evaluate(make(), verbose=0, **size), loss, rtol=1e-6)
    np.testing.assert_allclose(model.predict(make(), verbose=0, **size), outputs, rtol=1e-6)
    assert make is not ListsOfExamples or ListsOfExamples.at_once >= 3


def test_single_batches() -> None:
    plain, keyed = model_of(), model_of(batch_keys=KEYS)
    assert keyed.test_on_batch(COLUMNS) == plain.test_on_batch(IDS, LABELS, MASK)
    np.testing.assert_array_equal(keyed.predict_on_batch({"input_ids": IDS}), plain.predict_on_batch(IDS))
    assert keyed.train_on_batch(COLUMNS) == plain.train_on_batch(IDS, LABELS, MASK)
    assert keyed.lower_train_step(COLUMNS).as_text() == plain.lower_train_step(IDS, LABELS, MASK).as_text()


def test_what_is_no_dict_or_has_targets_is_as_without_them() -> None:
    plain, keyed = model_of(), model_of(batch_keys=KEYS)
    assert keyed.evaluate(IDS, LABELS, verbose=0) == plain.evaluate(IDS, LABELS, verbose=0)
    np.testing.assert_array_equal(keyed.predict(IDS, verbose=0), plain.predict(IDS, verbose=0))
    batches = [(IDS[:8], LABELS[:8]), (IDS[8:16], LABELS[8:16])]
    assert keyed.fit(iter(batches), verbose=0).history == plain.fit(iter(batches), verbose=0).history


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "x", [("input_ids", "token_type_ids"), {"ids": "input_ids", "types": "token_type_ids"}], ids=["tuple", "dict"]
)
def test_several_inputs(x: Any) -> None:
    ids, types = (kd.Input((5,), dtype="int32", name=name) for name in ("ids", "types"))
    outputs = layers.Dense(7)(layers.Embedding(7, 4)(ids) + layers.Embedding(2, 4)(types))
    model = kd.Model({"ids": ids, "types": types} if isinstance(x, dict) else [ids, types], outputs)
    model.compile("sgd", "sparse_categorical_crossentropy", batch_keys={"x": x, "y": "labels"})
    assert np.isfinite(model.fit(Loader(), verbose=0).history["loss"]).all()
    assert model.predict(Loader(), verbose=0).shape == (22, 5, 7)


@pytest.mark.parametrize(
    "run",
    [
        lambda model: model.fit(Loader(), verbose=0),
        lambda model: model.evaluate(Examples(), verbose=0),
        lambda model: model.train_on_batch(COLUMNS),
        lambda model: model.fit(COLUMNS, verbose=0),
    ],
)
def test_a_missing_key(run: Any) -> None:
    model = model_of(batch_keys={"x": "input_ids", "y": "label"})
    with pytest.raises(DataError) as caught:
        run(model)
    text = str(caught.value)
    assert "has no key 'label' (did you mean 'labels'?)" in text
    assert "'input_ids', 'labels', 'attention_mask', 'token_type_ids'" in text
    assert "compile(..., batch_keys=...)" in text


def test_predict_needs_no_targets() -> None:
    model = model_of(batch_keys={"x": "input_ids", "y": "absent"})
    assert model.predict(Loader(), verbose=0).shape == (22, 5, 7)


@pytest.mark.parametrize(
    "keys",
    ["input_ids", {"y": "labels"}, {"x": 3}, {"x": "input_ids", "z": "labels"}, {"x": []}, {"x": "a", "y": None}],
)
def test_wrong_keys(keys: Any) -> None:
    with pytest.raises(ModelError, match="`batch_keys` must be a dict of 'x', 'y' and 'sample_weight'"):
        model_of(batch_keys=keys)


def test_they_are_saved_with_the_model(tmp_path: Any) -> None:
    model_of(batch_keys={**KEYS, "x": ("input_ids",)}).save(tmp_path / "m")
    loaded = kd.saving.load_model(tmp_path / "m")
    assert loaded.get_compile_config()["batch_keys"]["y"] == "labels"
    model_of(batch_keys=KEYS).save(tmp_path / "n")
    assert np.isfinite(kd.saving.load_model(tmp_path / "n").evaluate(Loader(), verbose=0))
