"""The processes of a job run the same program, or none."""

from tests.processes import run

PROGRAM = """
import keras_dist as kd

kd.set_distribution(kd.DataParallel())

def train(units=4, rate=0.1, loss="mse", rows=16, size=8, epochs=1, dtype="float32", seed=0, shuffle=True):
    kd.set_random_seed(seed)
    model = kd.Sequential([kd.Input((3,)), kd.layers.Dense(units)])
    model.compile(kd.optimizers.SGD(rate), loss)
    x, y = np.ones((rows, 3), dtype), np.ones((rows, units), dtype)
    model.fit(x, y, size, epochs, shuffle=shuffle, verbose=0)
    return model, x, y

def mean(y_true, y_pred):
    return (y_true - y_pred).mean(-1)

def median(y_true, y_pred):
    return (y_true - y_pred).mean(-1)

def differ(told, *, first=None, second=None, run=train):
    try:
        run(**((second if process else first) or {}))
    except kd.errors.ClusterError as error:
        assert told in error.given, error
        assert "do not run the same program" in str(error)
    else:
        raise AssertionError(told)

model, x, y = train()
differ("float32[3, 4] laid out (None, None) in process 0 but float32[3, 5]", second={"units": 5})
differ("seed: 0 in process 0 but 1 in process 1", second={"seed": 1})
differ("`optimizer` of compile['config']['learning_rate']: 0.1 in process 0 but 0.2 in process 1", second={"rate": 0.2})
differ("`loss` of compile: 'mse' in process 0 but 'mae' in process 1", second={"loss": "mae"})
differ("'mean' in process 0 but 'median' in process 1", first={"loss": mean}, second={"loss": median})
differ("rows: 16 in process 0 but 24 in process 1", second={"rows": 24})
differ("rows of a batch: 8 in process 0 but 4 in process 1; steps: 2 in process 0 but 4", second={"size": 4})
differ("epochs: range(0, 1) in process 0 but range(0, 2) in process 1", second={"epochs": 2})
differ("float32", second={"dtype": "float16"})
differ("order of the rows: None in process 0 but (", first={"shuffle": False})
differ("rows: 16 in process 0 but 8", run=lambda n=16: model.evaluate(x[:n], y[:n], verbose=0), second={"n": 8})
differ("rows: 16 in process 0 but 8", run=lambda n=16: model.predict(x[:n], verbose=0), second={"n": 8})
train(loss=mean)
"""


def test_what_differs_is_named_in_all_processes():
    run(PROGRAM)
