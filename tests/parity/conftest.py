"""Tests that compare with Keras itself."""

import contextlib
from collections.abc import Generator

import hypothesis
import pytest

from tests.parity.compare import few_examples, one_program


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """All that a test compares is one program, that of all drawn examples, too."""
    with one_program():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of Keras about Keras are not ours; tests that do not say how many examples they draw draw fewer."""
    for item in items:
        if "parity" in item.path.parts:
            if hypothesis.is_hypothesis_test(item.obj):
                with contextlib.suppress(hypothesis.errors.InvalidArgument):  # it has settings of its own
                    few_examples(item.obj)
            item.add_marker(pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning:keras"))
