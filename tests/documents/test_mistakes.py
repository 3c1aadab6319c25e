"""`docs/how_to/mistakes.md` is true: each mistake is made here, and its message has the texts of the second column."""

import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import keras_dist as kd
from keras_dist.models import model_distribution
from tests import commands
from tests.documents.test_threads import DOCS

ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", (DOCS / "how_to" / "mistakes.md").read_text(), re.MULTILINE)
PAGE = {did: seen for did, seen, _ in ROWS if did not in ("you did", "---")}
X, Y = np.zeros((32, 8), "float32"), np.zeros((32, 1), "float32")


def mesh():
    return kd.DeviceMesh("data=2,model=4")


def model(outputs=1, loss="mse", **compiled):
    made = kd.Sequential([kd.Input((8,)), kd.layers.Dense(outputs, name="d1")])
    made.compile("sgd", loss, **compiled)
    return made


def ruled(key, axes=(None, "model"), outputs=12):
    rules = kd.LayoutMap(mesh())
    for each in [key] if isinstance(key, str) else key:
        rules[each] = axes
    with kd.ModelParallel(rules).scope():
        model(outputs)


def replicated(x=X, y=Y, outputs=1, loss="mse", **options):
    with kd.DataParallel().scope():
        compiled = {"check": True} if options.pop("check", False) else {}
        model(outputs, loss, **compiled).fit(x, y, verbose=0, **options)


def in_call(function):
    with kd.DataParallel().scope():
        kd.Sequential([kd.Input((8,)), kd.layers.Lambda(function)])


def made_before():
    early = model()
    with kd.DataParallel().scope():
        early.fit(X, Y, verbose=0)


def of_early_keras():
    rules = kd.LayoutMap(mesh())
    with pytest.raises(TypeError, match="got multiple values for argument 'batch_dim_name'"):
        kd.ModelParallel(mesh(), rules, batch_dim_name="data")
    warnings.warn("got multiple values for argument 'batch_dim_name'", stacklevel=1)
    kd.ModelParallel(mesh(), rules)


def of_one_epoch():
    with kd.DataParallel().scope():
        made = model()
        made.fit(((x, y) for x, y in [(X, Y)]), epochs=3, verbose=0)


def backup_of_another(folder):
    for outputs in (1, 2):
        with kd.DataParallel().scope():
            backup = kd.callbacks.BackupAndRestore(folder / "backup", delete_checkpoint=False)
            model(outputs).fit(X, np.zeros((32, outputs)), verbose=0, callbacks=[backup])


def wrong_config(folder):
    (folder / "run.toml").write_text("[training]\nepoch = 3\n")
    kd.config.load(folder / "run.toml")


def launched(folder):
    (folder / "train.py").touch()
    assert commands.run("launch", folder / "train.py", "--processes", 2) == 2


MADE = {
    "a mesh of 12 on eight devices": lambda _: kd.DeviceMesh("data=3,model=4"),
    '`"modle"` for an axis': lambda _: ruled("d1/kernel", (None, "modle")),
    '`rules["d11/kernel"]`': lambda _: ruled("d11/kernel"),
    '`rules["kernel"]`, as in older Keras': lambda _: ruled("kernel"),
    '`(None, "model")` for a bias': lambda _: ruled("d1/bias"),
    "ten outputs over `model=4`": lambda _: ruled("d1/kernel", outputs=10),
    "two expressions that match one path": lambda _: ruled((".*kernel", "d1/.*")),
    "`ModelParallel(mesh, rules)` of early Keras": lambda _: of_early_keras(),
    "no distribution with several devices": lambda _: model().fit(X, Y, verbose=0),
    "model made before `set_distribution`": lambda _: made_before(),
    "`set_distribution(mesh)`, or a name": lambda _: kd.set_distribution(mesh()),
    '`kd.layers.Densse`, `Dense(8, activaton="relu")`': lambda _: kd.layers.Densse,
    "a key or an axis of a config, mistyped": wrong_config,
    "one-hot labels for a sparse loss, or the reverse": lambda _: replicated(
        y=np.eye(3)[np.zeros(32, int)], outputs=3, loss="sparse_categorical_crossentropy"
    ),
    "`fit` without `compile`": lambda _: kd.Sequential([kd.layers.Dense(1)]).fit(X, Y),
    '`loss="msee"`': lambda _: model(loss="msee"),
    "`fit(epoch=3)`": lambda _: replicated(epoch=3),
    "32 rows of x, 10 of y": lambda _: replicated(y=Y[:10]),
    "rows of five features for a model of eight": lambda _: replicated(x=X[:, :5]),
    "`kd.use_cpu_devices(8)` after an array was made": lambda _: kd.use_cpu_devices(4),
    "`kd.initialize()` after an array was made": lambda _: kd.initialize(),
    "`if x.sum() > 0` or `np.sin(x)` in `call`": lambda _: in_call(lambda x: x if x.sum() > 0 else -x),
    "`launch train.py --processes 2`": launched,
    "a generator for three epochs": lambda _: of_one_epoch(),
    "the backup of another model": backup_of_another,
    '`target="v5e:4x4"` with eight devices': lambda _: kd.plan(
        lambda: kd.Sequential([kd.Input((8,)), kd.layers.Dense(8)]), (X, X), kd.DataParallel(), target="v5e:4x4"
    ),
}
# what no message of one process can show, and what another test shows
ELSEWHERE = {
    "a layer of Keras in a model of `keras_dist`": "tests/parity, with Keras itself",
    "labels outside the classes": "the last block of the page",
    "`kd.initialize()` in a single process": "tests/jobs/test_joining.py",
    "`np.random.normal(...)` in `call`": "no message",
    "`batch_size` taken as rows of one device": "no message",
    "`save` only in the first process": "a hang",
    "`distribute_tensor(x, layout) + 1` under `jax.set_mesh(jax.make_mesh(...))`": "training/test_mesh_context.py",
}


def test_the_page_has_these_mistakes():
    assert {*PAGE} == {*MADE, *ELSEWHERE}


@pytest.mark.parametrize("mistake", MADE)
def test_the_message_is_the_one_on_the_page(mistake, tmp_path, capsys):
    jnp.zeros(1).block_until_ready()  # JAX has started
    model_distribution.warn_of_one_device.cache_clear()  # once per process
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            MADE[mistake](tmp_path)
            message = ""
        except Exception as error:
            message = str(error)
    message = "\n".join([message, *(str(each.message) for each in caught), capsys.readouterr().err])
    texts = re.findall(r"``(.+?)``(?!`)|`(.+?)`", PAGE[mistake])
    for text in [part.strip() for found in texts for part in "".join(found).split("...")]:
        if not (mistake.startswith("one-hot") and text == "must be one-hot"):  # the reverse
            assert text in " ".join(message.split()), message
