"""Operations, losses, metrics, optimizers, schedules and layers give the numbers, shapes and types of Keras.

`tests/parity` and `tests/ops` compare with Keras itself, with many more arguments: `make test-all` runs that.
"""

import types

import numpy as np
import pytest

import keras_dist as kd
from tests.keras_values.cases import cases, read, results, summary

PARTS = {"ops": 12, "metrics": 3, "layers": 5}
KINDS = cases()
CHUNKS = [(kind, part) for kind in KINDS for part in range(PARTS.get(kind, 1))]


def agree(package: types.ModuleType, kind: str, part: int) -> None:
    """What a package gives for some cases is what is in the record."""
    recorded, some = read(), dict([*KINDS[kind].items()][part :: PARTS.get(kind, 1)])
    for name, leaves in results(package, some).items():
        specs, values = summary(leaves)
        expected_specs, expected = recorded[f"{kind}: {name}"]
        assert specs == expected_specs, name
        largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=1))
        tolerance = 2e-2 if any(dtype in ("bfloat16", "float16") for _, dtype in specs) else 1e-5
        np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance * largest, err_msg=name)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of limits
@pytest.mark.parametrize(("kind", "part"), CHUNKS)
def test_numbers_are_those_that_keras_gave(kind: str, part: int) -> None:
    agree(kd, kind, part)


@pytest.mark.filterwarnings("ignore")  # of Keras about Keras
@pytest.mark.parametrize("kind", KINDS)
def test_keras_gives_them_still(keras: types.ModuleType, kind: str) -> None:
    agree(keras, kind, 0)


def test_the_record_has_the_cases_and_no_others() -> None:
    assert [*read()] == [f"{kind}: {name}" for kind, of in KINDS.items() for name in of]
