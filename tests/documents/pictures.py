"""The picture of a plan in README, light and dark: `python -m tests.documents.pictures`."""

import pathlib

import jax

import keras_dist as kd

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "images"
THEMES = ("light", "dark")


def picture() -> kd.visualization.Picture:
    """The plan of a feed-forward block on a mesh of 2 x 4 devices."""
    rules = kd.LayoutMap(kd.DeviceMesh("data=2,model=4"))
    rules["up/kernel"], rules["down/kernel"] = (None, "model"), ("model", None)
    rules["up/bias"] = ("model",)

    def factory():
        up, down = kd.layers.Dense(4096, "relu", name="up"), kd.layers.Dense(1024, name="down")
        return kd.Sequential([kd.Input((1024,)), up, down])

    x = jax.ShapeDtypeStruct((256, 1024), "float32")
    plan = kd.plan(factory, (x, x), kd.ModelParallel(rules), "adam", "mse").state
    return kd.visualization.plot_plan(plan, "up/kernel", "down/kernel")


if __name__ == "__main__":
    kd.use_cpu_devices(8)
    for theme in THEMES:
        picture().save(FOLDER / f"plan_{theme}.svg", theme)
