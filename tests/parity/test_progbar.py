"""`utils.Progbar` shows the values that Keras's does."""

import re

import pytest

import keras_dist as kd

CASES = {
    "means": ({"target": 5}, [(2, 1.0), (3, 4.0)], None),
    "means by steps": ({"target": 9}, [(1, 1.0), (4, 4.0), (8, -2.0)], True),
    "the last update as it is": ({"target": 5}, [(2, 1.0), (3, 4.0), (5, 0.25)], None),
    "as they are": ({"target": 9, "stateful_metrics": ["loss"]}, [(2, 1.0), (3, 4.0)], True),
    "no target": ({"target": None}, [(0, 1.0), (1, 4.0), (1, 1e-5)], True),
    "the same step again": ({"target": 9}, [(3, 1.0), (3, 2.0)], True),
}


@pytest.mark.parametrize(("arguments", "updates", "finalize"), CASES.values(), ids=CASES)
def test_values_are_those_of_keras(keras, capsys, arguments, updates, finalize):
    shown = []
    for utils in (keras.utils, kd.utils):
        bar = utils.Progbar(**arguments)
        for current, loss in updates:
            bar.update(current, [("loss", loss)])
        bar.update(updates[-1][0] + 1, [("other", 2.0)], finalize=True) if finalize else bar.add(5, [("other", 2.0)])
        last = re.split(r"[\r\n]", capsys.readouterr().out.rstrip())[-1]
        shown.append((re.search(r"\d+/(\d+|Unknown)", last)[0], re.findall(r"\w+: -?[\d.e+-]+", last)))
    assert shown[0] == shown[1]
