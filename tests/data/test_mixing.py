"""Mixtures: exact proportions, every example in turn, and any position."""

import json
from collections import Counter
from typing import Any

import grain
import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from keras_dist.data import mix
from keras_dist.data.lookup import LookupSource
from keras_dist.errors import DataError
from tests.data.rows import source_of

A, B = list(range(10)), list(range(100, 170))


def drawn(mixed: Any) -> list[Any]:
    return [mixed[draw] for draw in range(len(mixed))]


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=4))
def test_each_period_has_the_weights_and_a_prefix_is_close(given):
    weights, sizes = [weight for weight, _ in given], [size for _, size in given]
    sources = {f"s{index}": [(index, number) for number in range(size)] for index, size in enumerate(sizes)}
    mixed = mix(sources, weights)
    found = drawn(mixed)
    assert len({*found}) == len(found)  # no example twice
    seen = Counter()
    for draw, (index, _) in enumerate(found, 1):
        seen[index] += 1
        for other, weight in enumerate(weights):
            away = abs(seen[other] * sum(weights) - draw * weight)
            assert away < sum(weights) * (len(weights) - 1 or 1) and (draw % sum(weights) or not away)
    assert mixed.counts == {f"s{index}": seen[index] for index in range(len(given))}
    # the next draw would be one of a source that has no more
    assert any(seen[index] == size for index, size in enumerate(sizes))


def test_every_example_is_drawn_if_shorter_sources_repeat():
    found = drawn(mix({"a": A, "b": B}, {"b": 3, "a": 1}, until="all"))
    assert Counter(one for one in found if one >= 100) == dict.fromkeys(B, 1)
    of_a = [one for one in found if one < 100]
    assert len(of_a) == 23 and [sorted(of_a[:10]), sorted(of_a[10:20])] == [A, A]
    assert of_a[:10] != of_a[10:20] != A  # in another order each time


def test_the_seed_orders_the_examples():
    first, same, other = (drawn(mix({"a": A, "b": B}, seed=seed)) for seed in (1, 1, 2))
    assert first == same != other
    assert [one < 100 for one in first] == [one < 100 for one in other]
    assert drawn(mix({"a": A, "b": B}, seed=None))[:6] == [0, 100, 1, 101, 2, 102]
    assert drawn(mix({"a": A, "b": A}))[::2] != drawn(mix({"a": A, "b": A}))[1::2]


@pytest.mark.parametrize(
    ("weights", "pattern"),
    [((0.3, 0.7), "babbabbabb"), ((1 / 3, 2 / 3), "bab"), (np.array([2, 2]), "ab"), ((5, 0.5), "aaaaabaaaaa")],
)
def test_fractions_are_exact(weights, pattern):
    mixed = mix({"a": [0] * 700, "b": [1] * 700}, weights)
    names = "".join("ab"[one] for one in drawn(mixed))
    period = Counter(pattern)
    for start in range(0, len(names) - len(pattern), len(pattern)):
        assert Counter(names[start : start + len(pattern)]) == period
    assert names[: len(pattern)] == names[len(pattern) : 2 * len(pattern)]


def test_fit_takes_examples_of_any_kind():
    xy = [(np.full(3, number, "f4"), number) for number in range(6)]
    source = source_of(mix({"a": xy, "b": grain.MapDataset.source(xy)}))
    assert type(source) is LookupSource and source.length == 12
    (batch,) = source.batches(12, 1)
    np.testing.assert_array_equal(batch.arrays[0][:, 0], batch.arrays[1])


class Counted:
    """An iterable that counts what is read of it."""

    def __init__(self, items):
        self.items, self.read = items, 0

    def __iter__(self):
        for item in self.items:
            self.read += 1
            yield item


class TestStreams:
    def sources(self):
        return {
            "a": Counted(A),
            "b": lambda: iter(B),
            "c": grain.MapDataset.source(B).seed(1).shuffle().to_iter_dataset(),
        }

    def test_the_mixture_ends_with_the_first_source(self):
        found = list(mix(self.sources(), (1, 2, 1)))
        assert [one for one in found if one < 100] == A and len(found) == 41

    @pytest.mark.parametrize("done", [0, 1, 5, 17])
    def test_positions(self, done):
        whole = list(mix(self.sources(), (1, 2, 1)))
        begun = iter(mix(self.sources(), (1, 2, 1)))
        for _ in range(done):
            next(begun)
        left = iter(mix(self.sources(), (1, 2, 1)))
        left.set_state(json.loads(json.dumps(begun.get_state())))
        assert list(left) == whole[done:]

    def test_sources_by_number_do_not_read_again(self):
        class Reads(list):
            def __getitem__(self, number):
                read.append(number)
                return super().__getitem__(number)

        read: list[int] = []
        left = iter(mix({"a": Reads(A), "b": lambda: iter(B)}, seed=None))
        state = {**left.get_state(), "draw": 12, "sources": {"a": 6, "b": 6}}
        left.set_state(state)
        assert [next(left), next(left), read] == [6, 106, [6]]


@pytest.mark.parametrize(
    ("sources", "options", "words"),
    [
        ([A, B], {}, "`sources` must be a dict of sources by name"),
        ({}, {}, "`sources`"),
        ({"a": (A, B)}, {}, r"`sources\['a'\]` must be a source of examples(.|\n)*pass a list"),
        ({"a": iter(A)}, {}, r"sources\['a'\]=lambda"),
        ({"a": [], "b": B}, {}, r"sources\['a'\] has no example"),
        ({"a": A, "b": B}, {"weights": (1,)}, "a positive number for each source: a, b"),
        ({"a": A, "b": B}, {"weights": (1, 0)}, "a positive number"),
        ({"a": A, "b": B}, {"weights": {"a": 1, "c": 1}}, "a positive number for each source: a, b"),
        ({"a": A, "b": B}, {"weights": "ab"}, "a positive number"),
        ({"a": A, "b": B}, {"weights": (1, 2**30)}, "each at least"),
        ({"a": A, "b": B}, {"until": "last"}, "'first', 'all'"),
        ({"a": A, "b": Counted(B)}, {"until": "all"}, "iterables b"),
        ({"a": A}, {"seed": -1}, "`seed`"),
    ],
)
def test_mistakes(sources, options, words):
    with pytest.raises(DataError, match=words):
        mix(sources, **options)


def test_an_example_that_cannot_be_read_is_named():
    class Broken(list):
        def __getitem__(self, number):
            raise OSError("no disk")

    with pytest.raises(OSError) as caught:
        mix({"a": Broken(A)})[0]
    assert caught.value.__notes__ == ["in source 'a'"]


def test_weights_of_any_proportion_are_rounded_together():
    sizes = np.array([12345, 67890, 54321])
    mixed = mix({name: range(10_000_000) for name in "abc"}, weights=sizes / sizes.sum())
    counts = np.array([*mixed.counts.values()])
    np.testing.assert_allclose(counts / counts.sum(), sizes / sizes.sum(), atol=2e-6)
    mixed = mix({"a": range(10), "b": range(1_000_000)}, weights=(6e-5, 1))
    assert mixed.counts["b"] / mixed.counts["a"] == pytest.approx(1 / 6e-5, rel=0.1)


def test_weights_are_an_array_of_numpy_or_jax():
    sources = {"a": [1, 2, 3], "b": [10, 20, 30]}
    for weights in (np.array([1.0, 2.0]), jnp.array([1.0, 2.0])):
        assert mix(sources, weights).counts == mix(sources, (1, 2)).counts
