"""`fit` of a model with steps of its own against `fit` of one without: what does the form of Keras on JAX cost?

The model's `train_step(self, state, data)` is written out as in Keras's guide: `compute_loss_and_updates`, gradients,
`stateless_apply`, metrics. One process for each number of devices; on four of them the weights are split, too.
"""

from __future__ import annotations

from typing import Any

import jax

import keras_dist as kd
from benchmarks import measure as m
from benchmarks.workload import images, make_model

ROWS = 2560
BATCH_SIZE = 128
EPOCHS = 5

AIM = 1.1


class WrittenOut(kd.Sequential):
    """Its step is that of Keras's guide."""

    def train_step(self, state: Any, data: Any) -> Any:
        """Gradient descent on the loss of `compile`."""
        trainable, others, slots, measured = state
        x, y = data
        grad_fn = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (_, (loss, y_pred, others, measured)), grads = grad_fn(
            trainable, others, measured, x, y, None, training=True, optimizer_variables=slots
        )
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        logs, after = {}, []
        for metric in self.metrics:
            count = len(metric.variables)
            before, measured = measured[:count], measured[count:]
            given = (loss,) if metric.name == "loss" else (y, y_pred)
            new = metric.stateless_update_state(before, *given)
            logs[metric.name] = metric.stateless_result(new)
            after += new
        return logs, (trainable, others, slots, after)


def measure(devices: int, rounds: int) -> list[Any]:
    """The results of one process."""
    kd.use_cpu_devices(devices)
    mesh = kd.DeviceMesh({"batch": max(1, devices // 2), "model": min(2, devices)})
    rules = kd.LayoutMap(mesh)
    rules["dense/kernel"] = (None, "model")
    kd.set_distribution(kd.ModelParallel(layout_map=rules, batch_dim_name="batch"))
    x, y = images(ROWS)
    fit = {"batch_size": BATCH_SIZE, "epochs": EPOCHS, "verbose": 0}
    models = {
        f"{who}, {how}": make_model(kd, None, model_class, **options)
        for how, options in (("one step at once", {"steps_per_execution": 1}), ("as it comes", {}))
        for who, model_class in (("built in", None), ("own", WrittenOut))
    }
    samples = m.interleave({name: lambda model=model: model.fit(x, y, **fit) for name, model in models.items()}, rounds)
    steps = EPOCHS * ROWS // BATCH_SIZE
    where = f"{devices} device{'s' * (devices > 1)}, batch {BATCH_SIZE}"
    step = {"unit": "us a step", "per": steps / 1e6, "wall": AIM, "cpu": None, "all_cpu": None}
    return [
        line
        for how in ("one step at once", "as it comes")
        for line in m.compare(samples, f"own, {how}", f"built in, {how}", how, where, **step)
    ]


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure."""
    results = []
    for devices in (1, 4):
        results += m.in_process(__spec__.name, devices=devices, rounds=3 if quick else 15)
    return results


if __name__ == "__main__":
    m.main("steps", "a train step of one's own / the built-in one", run, __doc__)
