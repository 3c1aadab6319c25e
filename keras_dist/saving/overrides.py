"""What Keras calls of a subclass and keras_dist does not: overriding it would do nothing, so it is refused."""

from __future__ import annotations

from keras_dist.errors import ModelError

_FILES = "leave it out: weights are saved by their paths; keep what is to be saved in weights, made by add_weight"
_STEPS = "compile(..., metrics=..., train_step=...); see Model.compute_loss and Model.stateless_call"
_TRAINED = "set `trainable` of layers, or add_weight(..., trainable=False)"
_SLOTS = "define `transformation`, which returns an optax transformation: it makes the slots and takes the steps"

_REFUSED: dict[str, dict[str, str]] = {
    "Layer": {
        "compute_output_spec": "leave it out: shapes and dtypes follow from `call`, which is traced",
        "symbolic_call": "leave it out: shapes and dtypes follow from `call`, which is traced",
        "save_own_variables": _FILES,
        "load_own_variables": _FILES,
        "save_assets": _FILES,
        "load_assets": _FILES,
    },
    "Model": {
        **dict.fromkeys(("test_step", "predict_step", "compute_loss_and_updates", "stateless_compute_loss"), _STEPS),
        **dict.fromkeys(("make_train_function", "make_test_function", "make_predict_function"), _STEPS),
        **dict.fromkeys(("compute_metrics", "metrics", "reset_metrics", "get_metrics_result"), _STEPS),
        **dict.fromkeys(("trainable_variables", "trainable_weights", "non_trainable_variables"), _TRAINED),
        "non_trainable_weights": _TRAINED,
        "stateless_call": "override `call`",
    },
    "Metric": {"reset_states": "call it `reset_state`"},
    "Optimizer": {
        **dict.fromkeys(("update_step", "backend_update_step", "build", "apply", "apply_gradients"), _SLOTS),
        **dict.fromkeys(("stateless_apply", "save_own_variables", "load_own_variables"), _SLOTS),
        "finalize_variable_values": "override `finalize(state, params)`",
    },
}
"""By class of the package: what a subclass must not define, and what to do instead."""


def check_overrides(cls: type) -> None:
    """Check that a class outside of this package defines nothing that would not be called.

    Raises:
        ModelError: it does.
    """
    if _is_ours(cls):
        return
    refused = [
        (base.__name__, _REFUSED[base.__name__]) for base in cls.__mro__ if base.__name__ in _REFUSED and _is_ours(base)
    ]
    theirs = {name for base in cls.__mro__ if not _is_ours(base) for name in vars(base)}
    for kind, instead in refused:
        for name in instead:
            if name in theirs:
                raise ModelError(
                    f"{cls.__name__}.{name} would not be called",
                    given=f"a {kind} that defines {name}",
                    expected=f"what keras_dist calls of a {kind}",
                    fix=instead[name],
                )


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("keras_dist", "flax", "builtins")
