"""What a model itself says of its layouts: rules below those of the map, above none."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import keras_dist as kd
from keras_dist.errors import DistributionError, LayoutError
from tests.distribution.shapes import axes_of, model_parallel

INIT = nnx.initializers.lecun_normal()


def param(*shape: int, **metadata: Any) -> nnx.Param:
    with nnx.use_eager_sharding(False):
        return nnx.Param(jnp.ones(shape), **metadata)


def module(**params: Any) -> nnx.Module:
    made = nnx.Module()
    for name, value in params.items():
        setattr(made, name, value)
    return made


def linear(sharding: Any) -> nnx.Linear:
    with nnx.use_eager_sharding(False):
        return nnx.Linear(8, 4, rngs=nnx.Rngs(0), kernel_init=nnx.with_partitioning(INIT, sharding))


@pytest.mark.parametrize(
    ("make", "axes", "words"),
    [
        (lambda _: linear(("data", "model")), ("data", "model"), "kernel's own ('data', 'model')"),
        (lambda _: module(kernel=param(8, 4, out_sharding=P("model"))), ("model", None), "own ('model', None)"),
        (
            lambda _: module(kernel=param(8, 4, sharding_names=(("data", "model"), None))),
            (("data", "model"), None),
            "(",
        ),
        (lambda mesh: linear(NamedSharding(mesh.backend_mesh, P(None, "model"))), (None, "model"), "(None, 'model')"),
        (lambda _: linear((None, None)), (None, None), "kernel's own (None, None)"),
        (lambda _: linear(None), (None, None), "None"),
        (
            lambda _: {"kernel": linen.Partitioned(jax.ShapeDtypeStruct((8, 4), "float32"), ("data", "model"))},
            ("data", "model"),
            "kernel's own ('data', 'model')",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:'sharding_names' is deprecated")
def test_sharding_metadata_of_all_spellings_are_rules(mesh: kd.DeviceMesh, make: Any, axes: Any, words: str) -> None:
    row = model_parallel(mesh, {}).plan(make(mesh)).row("kernel")
    assert row.axes == axes
    assert words in str(row.rule)


def test_the_map_overrides_them_and_the_table_says_so(mesh: kd.DeviceMesh) -> None:
    plan = model_parallel(mesh, {".*kernel": (None, "model")}).plan(linear(("data", "nowhere")))
    assert plan.row("kernel").axes == (None, "model")
    assert plan.row("kernel").rule == ".*kernel, overrides kernel's own ('data', 'nowhere')"


def test_what_each_strategy_makes_of_them(mesh: kd.DeviceMesh) -> None:
    class Mine(kd.Distribution):
        def get_variable_layout(self, variable: Any) -> kd.TensorLayout:
            return kd.TensorLayout(("model", *[None] * (len(variable.shape) - 1)))

    rows = [
        distribution.plan(linear((None, "model"))).row("kernel")
        for distribution in (kd.FullySharded(mesh), kd.DataParallel(kd.DeviceMesh("batch=8")), Mine(mesh))
    ]
    rows.append(kd.FullySharded(mesh).plan(linear((None, "tensor"))).row("kernel"))  # of another mesh
    own = "kernel's own (None, 'model')"
    assert [(row.axes, row.rule) for row in rows] == [
        (("data", "model"), f"{own}, sharded over 'data'"),
        ((None, None), f"DataParallel replicates, overrides {own}"),
        (("model", None), f"Mine, overrides {own}"),
        (("data", None), "sharded over 'data', overrides kernel's own (None, 'tensor')"),
    ]


def test_a_statistic_follows_what_the_parameter_beside_it_says(mesh: kd.DeviceMesh) -> None:
    norm = nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    norm.scale = param(8, out_sharding=("model",))
    plan = model_parallel(mesh, {}).plan(norm)
    assert (plan.row("mean").axes, plan.row("mean").rule) == (("model",), "follows scale")


def test_weights_of_a_layer_by_itself_lie_by_the_rules_and_stay_so_when_they_are_loaded(mesh: kd.DeviceMesh) -> None:
    with model_parallel(mesh, {".*dense.*kernel": (None, "model"), ".*dense.*bias": ("model",)}).scope():
        layer = kd.layers.Dense(8)
        layer.build((16, 16))
    for _ in range(2):
        assert layer.kernel.value.sharding.spec == P(None, "model")
        assert layer.bias.value.sharding.spec == P("model")
        layer.kernel.assign(jnp.ones((16, 8)))
        layer.bias.assign(jnp.ones(8))
    assert (layer(jnp.ones((2, 16))) == 17.0).all()


class TestNames:
    def test_they_are_mapped_by_the_distribution_before_the_rules_of_the_model(self, mesh: kd.DeviceMesh) -> None:
        local = {"sharding_rules": (("embed", "model"), ("mlp", "model"))}
        tree = module(
            a=param(8, 8, 4, out_sharding=("embed", "mlp", "heads"), **local), b=param(8, out_sharding=("layers",))
        )
        axis_names = {"embed": None, "layers": ("data", "model")}
        with nnx.logical_axis_rules((("heads", "data"),)):
            for make in (kd.ModelParallel, lambda rules, **names: kd.FullySharded(mesh, rules=rules, **names)):
                plan = make(kd.LayoutMap(mesh), axis_names=axis_names).plan(tree)
                assert axes_of(plan) == {"a": (None, "model", "data"), "b": (("data", "model"),)}

    def test_all_that_lead_nowhere_are_one_error_with_what_to_write(self, mesh: kd.DeviceMesh) -> None:
        tree = module(
            a=param(8, 4, out_sharding=("embed", "mlp")), b=param(4, out_sharding=("mlp",)), c=linear(("x", None))
        )
        with pytest.raises(LayoutError) as caught:
            model_parallel(mesh, {"c/kernel": (None, None)}).plan(tree)
        assert "name axes that the mesh does not have: 'embed', 'mlp'" in caught.value.summary
        assert "'a' of shape (8, 4): a's own ('embed', 'mlp')" in caught.value.given
        assert "ModelParallel(..., axis_names={'embed': None, 'mlp': None})" in caught.value.fix

    def test_axes_that_the_mesh_does_not_have_are_refused(self, mesh: kd.DeviceMesh) -> None:
        with pytest.raises(DistributionError, match=r"`axis_names\['embed'\]` must be one of"):
            kd.ModelParallel(kd.LayoutMap(mesh), axis_names={"embed": "modle"})
        with pytest.raises(DistributionError, match="`axis_names` must be a dict"):
            kd.ModelParallel(kd.LayoutMap(mesh), axis_names="embed")  # type: ignore[arg-type]

    def test_distributions_with_other_names_differ(self, rules: kd.LayoutMap) -> None:
        assert kd.ModelParallel(rules, axis_names={"embed": "data"}) != kd.ModelParallel(rules)


def test_everything_that_is_wrong_is_found_at_once(mesh: kd.DeviceMesh) -> None:
    tree = module(
        rank=param(8, 4, out_sharding=("data",)),
        long=param(8, out_sharding=P("data", "model")),
        odd=param(3, 4, out_sharding=("data", "model")),
        twice=param(8, 4, out_sharding=("embed", "mlp")),
        entry=param(8, out_sharding=(7,)),
        unknown=param(8, out_sharding=("vocab",)),
    )
    names = {"embed": "data", "mlp": "data"}
    with pytest.raises(LayoutError) as caught:
        kd.ModelParallel(kd.LayoutMap(mesh), axis_names=names).plan(tree)
    problems = {problem.path: problem for problem in caught.value.problems}
    assert set(problems) == {"rank", "long", "odd", "twice", "entry", "unknown"}
    for name, problem in problems.items():
        assert f"{name}'s own (" in problem.given, problem
    assert "write a rule with 2 entries for this path, which overrides it" in problems["rank"].fix
    assert "nnx.PARTITION_NAME" in problems["long"].fix
    assert "make the dim 4, or map this path to (None, 'model')" in problems["odd"].fix
    assert "mesh axis 'data' is used for more than one dim" in problems["twice"].summary
    assert "an entry of a layout must be" in problems["entry"].summary
    assert "axis_names={'vocab': None}" in problems["unknown"].fix
