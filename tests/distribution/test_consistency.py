"""The processes of a job run the same program, or none."""

import pytest

from tests.processes import run

PROGRAM = """
import copy
import jax.numpy as jnp
from flax import nnx
import keras_dist as kd
from keras_dist.callbacks import EarlyStopping, LambdaCallback

kd.set_distribution(kd.DataParallel())
X, Y = np.ones((16, 3), "f4"), np.zeros((16, 1), "i4")


def made(units=2, seed=0, **options):
    kd.set_random_seed(seed)
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(units, **options)])
    model.get_weights()  # creates them
    return model


def differ(told, run, *arguments, both=None, **other):
    # run it with `other` in process 1, and with `both` in both
    try:
        run(*arguments, **(both or {}), **(other if process else {}))
    except kd.errors.ClusterError as error:
        assert told in str(error), error
    else:
        raise AssertionError(told)
"""

WEIGHTS = """
if process == 0:  # what needs no arrays
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2)])
    model.summary(print_fn=repr)
    repr(model.weights)

differ("weight 'dense/kernel': float32[3, 2] laid out (None, None) in process 0 but float32[3, 3]", made, units=3)
differ("seed: 0 in process 0 but 1 in process 1", made, seed=1)
made_with = lambda name="relu": made(activation=name)
differ("model['config']['layers'][1]['config']['activation']: 'relu' in process 0 but 'tanh'", made_with, name="tanh")
differ("['kernel_initializer']: 'glorot_uniform' in process 0 but 'ones'", made, kernel_initializer="ones")


def made_of_layers(seed=0, looks=False, copies=True):
    kd.set_random_seed(seed)
    dense = kd.layers.Dense(2)
    dense.build((None, 3))
    layer = copy.deepcopy(dense) if copies else dense
    if looks:
        np.array(dense.kernel)
    kd.set_random_seed(0)
    return kd.Sequential([kd.Input((3,)), layer]).get_weights()


told = "initial value of 'dense/kernel': drawn in process 0 but "
differ(told + "set or read before", made_of_layers, looks=True, both={"copies": False})
differ(told + "drawn from seed 1", made_of_layers, seed=1, looks=True)


class Users(kd.Model):
    def __init__(self):
        super().__init__()
        self.dense = kd.layers.Dense(2)
    def call(self, x):
        return self.dense(x)
    def get_config(self):
        raise NotImplementedError


differ("Users in process 0 but", lambda kind=Users: kind()(X), kind=type("Others", (Users,), {}))
module = nnx.Linear(3, 2, rngs=nnx.Rngs(process))
differ("value of 'kernel': sha256", kd.Model.from_nnx, module)
take = lambda: kd.Model.from_nnx(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
count, jax.local_device_count = jax.local_device_count, lambda: 2 - process
differ("number of local devices: 2 in process 0 but 1", made)
differ("number of local devices: 2 in process 0 but 1", take)
jax.local_device_count = count
jax.config.update("jax_default_matmul_precision", ("highest", "float32")[process])
differ("jax_default_matmul_precision: highest in process 0 but float32", made)
jax.config.update("jax_default_matmul_precision", None)
jax.config.update("jax_enable_x64", process == 1)
differ("jax_enable_x64: False in process 0 but True", take)
jax.config.update("jax_enable_x64", False)
kd.mixed_precision.set_dtype_policy(("float32", "mixed_bfloat16")[process])
differ("dtype policy: float32 in process 0 but mixed_bfloat16", take)
kd.mixed_precision.set_dtype_policy("float32")
"""

COMPILE = """
model = made()
sparse = kd.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(optimizer=0.1, loss=sparse, **options):
    model.compile(kd.optimizers.SGD(optimizer), loss, **options)
    model.fit(X, Y, 8, verbose=0)


def mean(y_true, y_pred):
    return (y_true - y_pred).mean(-1)


def median(y_true, y_pred):
    return (y_true - y_pred).mean(-1)


differ("`optimizer` of compile['config']['learning_rate']: 0.1 in process 0 but 0.2", trained, optimizer=0.2)
differ("`loss` of compile: 'mse' in process 0 but 'mae'", lambda loss="mse": trained(loss=loss), loss="mae")
differ("'mean' in process 0 but 'median' in process 1", lambda loss=mean: trained(loss=loss), loss=median)
differ("`metrics` of compile[0]: nothing in process 0 but 'accuracy'", trained, metrics=["accuracy"])
differ("`jit_compile` of compile: 'auto' in process 0 but False", trained, jit_compile=False)
differ("`steps_per_execution` of compile: 'auto' in process 0 but 2", trained, steps_per_execution=2)
"""

DATA = """
def fit(x=X, y=Y, batch_size=8, **options):
    model.fit(x, y, batch_size, verbose=0, **options)


def ones(rows, dtype="f4"):
    return np.ones((rows, 3), dtype), np.zeros((rows, 1), "i4")


def batches(rows, dtype="f4", count=2):
    return [ones(rows, dtype)] * count


class Set(kd.utils.PyDataset):
    def __init__(self, *arguments):
        super().__init__()
        self.batches = batches(*arguments)
    def __len__(self):
        return len(self.batches)
    def __getitem__(self, index):
        return self.batches[index]


def of(x, y):
    return {"x": x, "y": y}


model.compile(kd.optimizers.SGD(0.1), sparse)
differ("rows: 16 in process 0 but 24 in process 1", fit, **of(*ones(24)))
differ("rows of a batch: 8 in process 0 but 4 in process 1; steps: 2 in process 0 but 4", fit, batch_size=4)
differ("steps: 2 in process 0 but 1 in process 1", fit, steps_per_epoch=1)
differ("epochs: range(0, 1) in process 0 but range(0, 2) in process 1", fit, epochs=2)
differ("an example of `x`: float32[3] in process 0 but float16[3]", fit, x=X.astype("f2"))
differ("an example of `y`: int32[1] in process 0 but int32[]", fit, y=Y[:, 0])
differ("an example of `sample_weight`: nothing in process 0 but float32[]", fit, sample_weight=np.ones(16, "f4"))
differ("class_weight: [(0, 1.0)] in process 0 but [(0, 2.0)]", lambda w=1.0: fit(class_weight={0: w}), w=2.0)
differ("order of the rows: (", fit, shuffle=False)
differ("order of the rows: (4,) in process 0 but (3,)", lambda seed=4: fit(seed=seed), seed=3)
differ("validation data: None in process 0 but given", fit, validation_data=(X, Y))
differ("validation rows: 16 in process 0 but 8", lambda n=16: fit(validation_data=(X[:n], Y[:n])), n=8)
differ("validation_freq: 1 in process 0 but 2", fit, both={"validation_data": (X, Y)}, validation_freq=2)
differ("callback 0: nothing in process 0 but EarlyStopping", fit, callbacks=[EarlyStopping("loss")])
differ("patience']: 1 in process 0 but 2", lambda n=1: fit(callbacks=EarlyStopping("loss", patience=n)), n=2)
for stream in (lambda *given: iter(batches(*given)), Set):
    fit_to = lambda *given: model.fit(stream(*given), verbose=0)
    differ("rows of the first batch: 8 in process 0 but 4", lambda n=8: fit_to(n), n=4)
    differ("an example of `x`: float32[3] in process 0 but float64", lambda t="f4": fit_to(8, t), t="f8")
differ("steps: 2 in process 0 but 3", lambda n=2: model.fit(Set(8, "f4", n), verbose=0), n=3)
differ("rows: 16 in process 0 but 8", lambda n=16: model.evaluate(X[:n], Y[:n], verbose=0), n=8)
differ("rows: 16 in process 0 but 8", lambda n=16: model.predict(X[:n], verbose=0), n=8)
fit(callbacks=[LambdaCallback(on_epoch_end=lambda epoch, logs: None)] * (process == 0))  # which need not be in both
"""

PROGRAMS = """
def activated(function):
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(2, function)])
    model.compile("sgd", sparse)
    model.fit(X, Y, 8, verbose=0)
    return model


differ("program: sha256", lambda by=1.0: activated(lambda x: by * x), by=2.0)

trained = activated("relu")
step = lambda rows=12: trained.train_on_batch(X[:rows], Y[:rows])
differ("batch: x float32(12, 3), y int32(12, 1) in process 0 but x float32(16, 3)", step, rows=16)
layer, weights = trained.layers[-1], trained.get_weights()
layer.trainable = process == 0
differ("['trainable']: True in process 0 but False", lambda: trained.compile("sgd", sparse))
layer.trainable = True
trained.compile("sgd", sparse)
set_rate = lambda value=0.1: setattr(trained.optimizer, "learning_rate", value)
differ("variable 'sgd/learning_rate' must be the same in all processes", set_rate, value=0.2)
differ("np.float32(0.1) in process 0, np.float32(0.2) in process 1", set_rate, value=0.2)
set_weights = lambda by=1: trained.set_weights([by * weights[0], weights[1]])
differ("variable 'dense/kernel' must be the same in all processes", set_weights, by=2)

keras_version, kd.__version__ = kd.__version__, f"0.{process}"
differ("version of keras_dist: 0.0 in process 0 but 0.1", model.predict, X)
kd.__version__ = keras_version
"""


@pytest.mark.multiprocess
def test_what_differs_is_named_in_all_processes():
    run("\n".join([PROGRAM, WEIGHTS, COMPILE, DATA, PROGRAMS]))
