import asyncio
import threading

import pytest

import keras_dist as kd
from keras_dist.distribution import distribution
from keras_dist.errors import DistributionError


@pytest.fixture
def one() -> kd.DataParallel:
    return kd.DataParallel()


@pytest.fixture
def two() -> kd.DataParallel:
    return kd.DataParallel(devices=kd.list_devices()[:4])


def in_thread() -> object:
    """What another thread sees as the current distribution."""
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(distribution()))
    thread.start()
    thread.join()
    return seen[0]


def test_the_default_holds_until_it_is_taken_back(one: kd.DataParallel) -> None:
    kd.set_distribution(one)
    assert distribution() is one
    kd.set_distribution(None)
    assert distribution() is None


def test_scopes_nest(one: kd.DataParallel, two: kd.DataParallel) -> None:
    with one.scope():
        assert distribution() is one
        with two.scope():
            assert distribution() is two
        assert distribution() is one
    assert distribution() is None


def test_a_scope_overrides_the_default(one: kd.DataParallel, two: kd.DataParallel) -> None:
    kd.set_distribution(one)
    with two.scope():
        assert distribution() is two
        kd.set_distribution(None)
        assert distribution() is two
    assert distribution() is None


def test_a_scope_ends_with_an_exception(one: kd.DataParallel) -> None:
    with pytest.raises(RuntimeError), one.scope():
        raise RuntimeError
    assert distribution() is None


def test_other_threads_do_not_see_a_scope(one: kd.DataParallel, two: kd.DataParallel) -> None:
    kd.set_distribution(one)
    with two.scope():
        assert in_thread() is one


def test_tasks_have_scopes_of_their_own(one: kd.DataParallel, two: kd.DataParallel) -> None:
    async def enter(own: kd.DataParallel) -> bool:
        with own.scope():
            await asyncio.sleep(0)
            return distribution() is own

    async def both() -> list[bool]:
        return list(await asyncio.gather(enter(one), enter(two)))

    assert asyncio.run(both()) == [True, True]


@pytest.mark.parametrize("value", ["data", 8, kd.DataParallel, kd.DeviceMesh("data=8")])
def test_only_a_distribution_can_be_set(value: object) -> None:
    with pytest.raises(DistributionError, match="`value` must be a DataParallel, "):
        kd.set_distribution(value)  # type: ignore[arg-type]
    assert distribution() is None
