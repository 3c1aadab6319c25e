"""`LambdaCallback`: functions in the place of hooks."""

import pytest

from keras_dist.callbacks import Callback, LambdaCallback
from keras_dist.errors import ModelError
from tests.networks import blobs

X, Y = blobs(8)
HOOKS = [name for name in dir(Callback) if name.startswith("on_")]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook(name):
    calls = []
    callback = LambdaCallback(**{name: lambda *args: calls.append(args)})
    for hook in HOOKS:
        number = () if hook.split("_")[-2] in ("train", "test", "predict") else (3,)
        getattr(callback, hook)(*number, {"loss": 1.0})
    expected = ((3,) if name.split("_")[-2] in ("epoch", "batch") else (), {"loss": 1.0})
    repeated = 2 if name in ("on_batch_begin", "on_batch_end") else 1  # `on_train_batch_begin` calls it, too
    assert calls == [(*expected[0], expected[1])] * repeated


def test_hooks_that_are_none():
    with pytest.raises(ModelError, match=r"unknown hook 'on_epoch_ends' \(did you mean 'on_epoch_end'\?\)"):
        LambdaCallback(on_epoch_ends=lambda epoch, logs: None)
    with pytest.raises(ModelError, match="`on_epoch_end` must be a function") as error:
        LambdaCallback(on_epoch_end="print")  # pyright: ignore
    assert "'print'" in error.value.given
