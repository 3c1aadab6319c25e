"""Slots, gradients and averages follow their parameters, in any optax chain."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
from optax import contrib

import keras_dist as kd
from tests.distribution.shapes import axes_of, f32, model_parallel

# Modules called `mu` and `nu`, as optax calls its slots; shapes that can be told apart, and two that cannot.
PARAMETERS = {
    "mu": {"kernel": f32(8, 16), "bias": f32(16)},
    "nu": {"kernel": f32(16, 16), "bias": f32(16)},
    "scale": f32(),
}
RULES = {"mu/kernel": (None, "model"), "mu/bias": ("model",), "nu/kernel": ("data", "model"), "nu/bias": ("data",)}
SHAPES = {"mu/kernel": (8, 16), "mu/bias": (16,), "nu/kernel": (16, 16), "nu/bias": (16,)}
LABELS = {"mu": "fast", "nu": "slow", "scale": "frozen"}
MASK = {"mu": True, "nu": {"kernel": True, "bias": False}, "scale": False}

CHAINS: dict[str, optax.GradientTransformation] = {
    "sgd with momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": optax.adamw(optax.cosine_decay_schedule(1e-3, 10)),
    "rmsprop, centered": optax.rmsprop(1e-3, centered=True, momentum=0.9),
    "amsgrad": optax.amsgrad(1e-3),
    "nadamw with a mask": optax.nadamw(1e-3, mask=MASK),
    "clips, decay and a schedule": optax.chain(
        optax.clip(1.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(1e-2),
        optax.scale_by_schedule(optax.linear_schedule(1.0, 0.0, 10)),
    ),
    "multi_transform": optax.multi_transform(
        {"fast": optax.adam(1e-2), "slow": optax.sgd(1e-3, momentum=0.9), "frozen": optax.set_to_zero()}, LABELS
    ),
    "masked": optax.masked(optax.adam(1e-3), MASK),
    "inject_hyperparams with a schedule": optax.inject_hyperparams(optax.adam)(optax.linear_schedule(1.0, 0.0, 10)),
    "adafactor, not factored": optax.adafactor(1e-3, momentum=0.9),
    "MultiSteps": optax.MultiSteps(optax.adamw(1e-3), every_k_schedule=4).gradient_transformation(),
    "ema": optax.chain(optax.adam(1e-3), optax.ema(0.99)),
    "adan": optax.adan(1e-3),
    "muon": contrib.muon(1e-3),
    "schedule_free": contrib.schedule_free_adamw(1e-3),
    "prodigy": contrib.prodigy(),
}


def slots_of(
    mesh: kd.DeviceMesh, optimizer: optax.GradientTransformation, parameters: Any = PARAMETERS, rules: Any = None
) -> tuple[kd.LayoutPlan, Any]:
    """The plan for the optimizer's state, and its shapes."""
    plan = model_parallel(mesh, RULES if rules is None else rules).plan(parameters)
    state = jax.eval_shape(optimizer.init, parameters)
    return plan.follow(state), state


@pytest.mark.parametrize("name", CHAINS)
def test_a_slot_of_the_parameters_shape_lies_as_the_parameter(mesh: kd.DeviceMesh, name: str) -> None:
    plan, state = slots_of(mesh, CHAINS[name])
    assert jax.tree.structure(plan.shardings) == jax.tree.structure(state)
    slots = 0
    for row in plan.rows:
        owner = next((path for path in RULES if row.path.endswith("/" + path) or row.path == path), None)
        shape = SHAPES[owner] if owner else None
        if owner and row.shape == shape:
            assert (row.path, row.axes, row.rule) == (row.path, RULES[owner], f"follows {owner}")
            slots += 1
        else:
            assert row.axes == (None,) * len(row.shape), row.path
            assert owner is None or row.shape == (1,), row.path
    assert slots == EXPECTED_SLOTS[name]


EXPECTED_SLOTS = dict.fromkeys(CHAINS, 8) | {
    "sgd with momentum": 4,
    "rmsprop, centered": 12,
    "amsgrad": 12,
    "multi_transform": 6,
    "masked": 6,
    "MultiSteps": 12,
    "ema": 12,
    "adan": 16,
    "muon": 6,
    "prodigy": 16,
}


FACTORED = {
    "wide": ((128, 256), ("data", "model"), ("data",), ("model",)),
    "tall": ((256, 128), ("data", "model"), ("model",), ("data",)),
    "square": ((128, 128), ("data", "model"), ("data",), ("model",)),
    "half": ((128, 128), (None, "model"), (None,), ("model",)),
    "stack": ((3, 128, 256), (None, "data", "model"), (None, "data"), (None, "model")),
    "heads": ((256, 128, 128), (None, "data", "model"), ("data", "model"), (None, "data")),
    "cube": ((128, 128, 128), (None, "data", "model"), (None, "data"), (None, "model")),
    "conv": ((128, 4, 128), ("data", None, "model"), ("data", None), (None, "model")),
}


@pytest.mark.parametrize("module", ["kernel", "v_row"])
@pytest.mark.parametrize("case", FACTORED)
def test_factored_slots_keep_the_layouts_of_the_surviving_dims(mesh: kd.DeviceMesh, case: str, module: str) -> None:
    shape, axes, row_axes, column_axes = FACTORED[case]
    plan, _ = slots_of(mesh, optax.adafactor(1e-3), {"d1": {module: f32(*shape)}}, {f"d1/{module}": axes})
    rows = {row.path.removesuffix(f"/d1/{module}"): row for row in plan.rows if row.path.endswith(f"/d1/{module}")}
    assert rows["0/v_row"].axes == row_axes
    assert rows["0/v_col"].axes == column_axes
    assert rows["0/v_row"].rule == rows["0/v_col"].rule == f"follows d1/{module}"
    assert (rows["0/v"].shape, rows["0/v"].axes) == ((1,), (None,))
    assert rows["0/v"].rule == f"replicated: its shape does not show the dims of d1/{module}"


@pytest.mark.parametrize("case", FACTORED)
def test_the_surviving_dims_are_the_ones_that_adafactor_keeps(case: str) -> None:
    """Read from optax's numbers: a gradient that differs along one dim makes the slots differ that have this dim."""
    shape, axes, row_axes, column_axes = FACTORED[case]
    optimizer: Any = optax.scale_by_factored_rms()
    update = jax.jit(lambda gradient: optimizer.update(gradient, optimizer.init(gradient), gradient)[1])
    for dim, axis in enumerate(axes):
        if axis is None:
            continue
        gradient = np.ones(shape, np.float32)
        gradient[(slice(None),) * dim + (0,)] = 5.0
        state = update(gradient)
        for slot, slot_axes in ((state.v_row, row_axes), (state.v_col, column_axes)):
            varying = [d for d in range(slot.ndim) if not np.allclose(np.diff(slot, axis=d), 0)]
            assert [slot_axes[d] for d in varying] == ([axis] if axis in slot_axes else [])


def test_small_dims_are_factored_when_optax_is_told_to(mesh: kd.DeviceMesh) -> None:
    optimizer = optax.adafactor(1e-3, min_dim_size_to_factor=4)
    plan, _ = slots_of(mesh, optimizer, {"kernel": f32(8, 16)}, {"kernel": ("data", "model")})
    assert (plan.row("0/v_row/kernel").axes, plan.row("0/v_col/kernel").axes) == (("data",), ("model",))


def test_sm3_keeps_the_dim_of_each_vector_where_sizes_tell_it(mesh: kd.DeviceMesh) -> None:
    plan, _ = slots_of(mesh, optax.sm3(1e-3))
    axes = {path: axes for path, axes in axes_of(plan).items() if path.startswith("0/mu/")}
    assert axes == {
        "0/mu/mu/bias/0": ("model",),
        "0/mu/mu/kernel/0": (None,),
        "0/mu/mu/kernel/1": ("model",),
        "0/mu/nu/bias/0": ("data",),
        "0/mu/nu/kernel/0": (None,),
        "0/mu/nu/kernel/1": (None,),
    }
    assert plan.row("0/nu/nu/kernel").axes == ("data", "model")


def test_dims_reduced_to_one_leave_the_others_as_they_were(mesh: kd.DeviceMesh) -> None:
    plan = model_parallel(mesh, {"w": ("data", "model")}).plan({"w": f32(8, 16)})
    assert plan.follow({"w": f32(8, 1)}).row("w").axes == ("data", None)
    assert plan.follow({"w": f32(1, 16)}).row("w").axes == (None, "model")
    assert plan.follow({"w": f32(4, 16)}).row("w").axes == (None, None)


def test_lbfgs_keeps_its_history_as_the_parameters_lie(mesh: kd.DeviceMesh) -> None:
    plan, state = slots_of(mesh, optax.lbfgs(memory_size=3))
    histories = [row for row in plan.rows if row.path.endswith("nu/kernel") and len(row.shape) == 3]
    assert len(histories) == 2
    assert {row.axes for row in histories} == {(None, "data", "model")}
    assert jax.tree.structure(plan.shardings) == jax.tree.structure(state)


def test_novograds_norms_are_replicated(mesh: kd.DeviceMesh) -> None:
    plan, _ = slots_of(mesh, optax.novograd(1e-3))
    assert plan.row("0/mu/nu/kernel").axes == ("data", "model")
    assert plan.row("0/nu/nu/kernel").axes == ()
    assert plan.row("0/nu/nu/kernel").rule == "replicated: its shape does not show the dims of nu/kernel"


@pytest.mark.parametrize("mask", [{"mu": True, "nu": False, "scale": False}, {"mu": False, "nu": True, "scale": True}])
def test_a_mask_that_empties_whole_branches(mesh: kd.DeviceMesh, mask: dict[str, bool]) -> None:
    plan, state = slots_of(mesh, optax.chain(optax.clip(1.0), optax.masked(optax.adam(1e-3), mask)))
    axes = {row.path.split("inner_state/")[1]: row.axes for row in plan.rows if row.shape}
    kept = "mu" if mask["mu"] else "nu"
    assert axes == {
        f"0/{slot}/{kept}/{name}": RULES[f"{kept}/{name}"] for slot in ("mu", "nu") for name in ("bias", "kernel")
    }
    assert jax.tree.structure(plan.shardings) == jax.tree.structure(state)


@pytest.mark.parametrize("optimizer", ["adamw", "masked", "multi_transform"])
def test_what_belongs_to_no_parameter_is_replicated_and_listed(mesh: kd.DeviceMesh, optimizer: str) -> None:
    plan, _ = slots_of(mesh, CHAINS[optimizer])
    counts = [row for row in plan.rows if row.path.endswith("count")]
    assert counts
    assert {(row.axes, row.rule, row.role) for row in counts} == {((), "no parameter", "slot")}


@pytest.mark.parametrize(
    ("parameters", "rules", "expected"),
    [
        pytest.param(f32(8, 16), {}, {"0/mu": (None, None), "0/nu": (None, None)}, id="a single array"),
        pytest.param(
            {"w": f32(8)}, {"w": ("model",)}, {"0/mu/w": ("model",), "0/nu/w": ("model",)}, id="one in a dict"
        ),
        pytest.param([f32(8)], {"0": ("model",)}, {"0/mu/0": ("model",), "0/nu/0": ("model",)}, id="one in a list"),
        pytest.param((f32(8),), {"0": ("model",)}, {"0/mu/0": ("model",), "0/nu/0": ("model",)}, id="one in a tuple"),
        pytest.param({}, {}, {}, id="none"),
        pytest.param({"a": {}, "b": None}, {}, {}, id="empty branches"),
    ],
)
def test_few_parameters(mesh: kd.DeviceMesh, parameters: Any, rules: Any, expected: dict[str, tuple]) -> None:
    plan, state = slots_of(mesh, optax.adam(1e-3), parameters, rules)
    assert axes_of(plan) == {"0/count": (), **expected}
    assert jax.tree.structure(plan.shardings) == jax.tree.structure(state)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("container", [tuple, list])
@pytest.mark.parametrize(
    "optimizer",
    [optax.adam(1e-3), optax.adamw(1e-3), optax.chain(optax.clip(1.0), optax.scale_by_adam()), optax.sm3(1e-3)],
    ids=["adam", "adamw", "chain", "sm3"],
)
def test_bare_tuples_of_parameters_are_not_taken_for_optax_own(
    mesh: kd.DeviceMesh, optimizer: optax.GradientTransformation, container: type, size: int
) -> None:
    layouts = [("model",), ("data",), (None,)][:size]
    parameters = container(f32(8) for _ in layouts)
    plan, state = slots_of(mesh, optimizer, parameters, {str(index): axes for index, axes in enumerate(layouts)})
    found = [row.axes for row in plan.rows if row.shape == (8,)]
    assert found == layouts * (len(found) // size)
    assert len(found) == 2 * size
    assert jax.tree.structure(plan.shardings) == jax.tree.structure(state)


def test_gradients_and_averages_lie_as_the_parameters(mesh: kd.DeviceMesh) -> None:
    plan = model_parallel(mesh, RULES).plan(PARAMETERS)
    for role in ("gradient", "parameter"):
        followers = plan.follow(PARAMETERS, role=role)  # type: ignore[arg-type]
        assert axes_of(followers) == axes_of(plan)
        assert {row.role for row in followers.rows} == {role}
    assert axes_of(plan.follow({"average": PARAMETERS})) == {f"average/{p}": a for p, a in axes_of(plan).items()}
