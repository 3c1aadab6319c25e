"""The arguments of `compile`, and the optimizers and steps that follow from them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from keras_dist._support.arguments import check_callable, check_option
from keras_dist._support.stateless_scope import StatelessScope
from keras_dist._support.types import PyTree
from keras_dist.data.batch import check_batch_keys
from keras_dist.errors import ModelError
from keras_dist.models.config import written_argument
from keras_dist.models.fit_arguments import check_steps
from keras_dist.models.model_base import ModelBase
from keras_dist.optimizers import get as get_optimizer
from keras_dist.optimizers import is_config
from keras_dist.optimizers.loss_scale import with_loss_scale
from keras_dist.serialization import deserialize_keras_object
from keras_dist.training.activations import resolve_remat
from keras_dist.training.compile_config import CompileConfig, StepOptions
from keras_dist.training.compile_metrics import ModelMetrics
from keras_dist.training.loop import Mode
from keras_dist.training.objective import Objective, check_free, check_report, resolve_objective
from keras_dist.training.optimization import DEFAULT, TrainState, as_optimizer
from keras_dist.training.outputs import Outputs
from keras_dist.training.step import Batch, TrainStep
from keras_dist.training.step_protocol import PARTS, StepProtocol

_BOOLS = (False, True)
_MODES: tuple[Mode, ...] = ("train", "test", "predict")

_MEASURES = ("compute_metrics", "stateless_compute_loss", "get_metrics_result")
"""Methods that Keras's steps call: a model that overrides one of these has Keras's steps, unless it defines steps."""


def compile(
    model: ModelBase,
    optimizer: Any = "rmsprop",
    loss: PyTree = None,
    loss_weights: PyTree = None,
    metrics: PyTree = None,
    weighted_metrics: PyTree = None,
    run_eagerly: bool = False,
    steps_per_execution: int | Literal["auto"] = "auto",
    jit_compile: bool | Literal["auto"] = "auto",
    auto_scale_loss: bool = True,
    *,
    train_step: TrainStep | None = None,
    donate: bool = True,
    check: bool = False,
    prefetch: int = 2,
    remat: str | None = None,
    uneven: Literal["pad"] | None = None,
    report: Sequence[str] | str | None = None,
    batch_keys: Mapping[str, PyTree] | None = None,
    micro_batches: int | None = None,
    slot_memory: Literal["pinned_host"] | None = None,
    rowwise: str | None = None,
) -> None:
    """Configure the model for training. Optimizer slots are sharded like their parameters, and created with them.

    Args:
        optimizer: a name (`"sgd"`, `"adam"`, `"adamw"`, `"rmsprop"`, ...), an `Optimizer`, an optax transformation,
            or a dict of these by name. In a dict each optimizer updates the variables below the attribute of its
            name, or, given as `(optimizer, rule)`, the variables whose whole path matches the regular expression.
            To accumulate gradients with optax, use
            `optimizers.OptaxOptimizer(transformation, gradient_accumulation_steps=4)`.
        loss: a name (`"mse"`), a `Loss`, or a callable `(y_true, y_pred)` that returns a value for each example, a
            scalar, or `(loss, {"name": scalar})`; these scalars are logged as means weighted by rows. As in Keras,
            targets (batch,) become (batch, 1) for such predictions. For several outputs a list or dict by output,
            with None for outputs without a loss, or one loss for all outputs. A callable gets whole structures if
            targets and outputs have different structures. None if `compute_loss`, layers or regularizers define
            the loss.
        loss_weights: factors of the losses in their sum, a list or dict by output.
        metrics: names (`"accuracy"`, `"mse"`), `Metric`s, or callables `(y_true, y_pred)` that return a value for
            each example; one of these or a list. For several outputs a list of lists, or a dict by output. All
            examples have weight 1.
        weighted_metrics: metrics that weight examples by their `sample_weight`.
        run_eagerly: whether steps run operation by operation, so that a debugger and `print` see every value.
        steps_per_execution: number of steps of fit and evaluate in one program; callbacks are called between
            executions. By default an execution takes about 0.1 s, or one step if a callback looks at single
            batches. Unless it is 1, small arrays are kept on the devices while fit runs, and must not change
            meanwhile. Results are bitwise equal for all values, except where XLA on CPUs compiles the body of a
            loop differently from a single step (grouped convolutions, and convolutions or BatchNormalization on
            batches that the mesh does not divide); there they are equal to rounding.
        jit_compile: False is the same as `run_eagerly=True`.
        auto_scale_loss: whether a `LossScaleOptimizer` wraps the optimizer of a model under the policy
            "mixed_float16".
        train_step: a pure function `(state, batch, rngs) -> (state, logs)` that replaces gradient descent on the
            loss; `batch` is `(x, y, sample_weight)`, `logs` a dict of scalars. See `merge`, `split` and
            `apply_gradients`; draw random numbers from `rngs` outside of `jax.grad`. By default the method
            `train_step` of a subclass, in this form or in the form of Keras, `train_step(self, state, data)`.
        donate: whether a step may reuse the memory of the state before it. Otherwise it needs twice the memory.
        check: whether compiled steps check the indices of `Embedding` layers and the labels of sparse losses.
            Otherwise an index out of range gives NaN, or is taken from the end. The error names layer or loss and
            value, and the model keeps its state before the step. For debugging: memory is not donated, and each
            step is waited for. Eager steps always check.
        prefetch: number of executions that the loop is ahead of the devices; their batches are transferred while
            an earlier one runs.
        remat: values that the backward pass recomputes instead of storing them: "full" for all; the name of a
            policy in `jax.checkpoint_policies`; or a regular expression for whole paths of layers that store only
            their inputs. Results are the same. In a custom `train_step` it applies to
            `stateless_call(..., training=True)`.
        uneven: "pad" for modules that split the rows of a batch themselves, for example with `jax.shard_map`, and
            therefore need a multiple of the devices. The last batch is padded for the module by repetitions of its
            last row, which are cut off the outputs before losses, metrics and weights. Values that the module
            computes row by row are exact. Values across rows include the padding: statistics of
            BatchNormalization, losses that layers add, and outputs without rows. Outputs whose shape does not
            depend on the number of rows are returned unchanged; a loss or metric of such an output, and outputs
            with rows in another dim than the first, are errors. By default the module sees the real rows.
        report: values of the training that `fit` and `train_on_batch` log beside loss and metrics:

            - `"gradient_norm"`: global norm of the unscaled gradient of an update before it is clipped; for
              accumulated gradients the norm of their mean. An epoch logs the mean over updates, nan without one.
            - `"learning_rate"`: rate of the last step; for several optimizers `"<name>_learning_rate"`. A
              plain optax transformation must be an alias with a schedule, such as
              `optax.adam(optax.constant_schedule(1e-3))`, or of `optax.inject_hyperparams`.
            - `"tokens_per_second"`: tokens of the epoch by its wall time without compilation. Tokens are values
              of the loss with a sample weight other than 0 that are not masked, over all devices.
            - `"examples_per_second"`: rows of the epoch by the same time.
        batch_keys: keys of inputs, targets and weights in batches that are dicts, such as
            `dict(x="input_ids", y="labels", sample_weight="attention_mask")`; for several inputs a tuple, list or
            dict of keys. They apply to the batches and examples of all datasets, and to dicts of arrays without
            `y`; `predict` needs the keys of `x` only.
        micro_batches: number of parts into which a batch is split for the pipelines of the model: of each
            `layers.Stack`, or decoder with `scan=True`, whose leading dim layout rules shard over an axis of
            stages. Other layers compute the whole batch. Gradients and results are the same. By default layers are
            not pipelined.
        slot_memory: "pinned_host" keeps optimizer slots in the memory of the hosts, where the devices can read it.
            A step transfers the slots of one parameter after another, so that they need little memory of the
            devices. Results are the same. Custom steps update slots by `apply_gradients` or `stateless_apply`.
        rowwise: a regular expression for whole paths of tables of `Embedding` layers, such as
            `r"(user|item)/embeddings"`. A step then computes gradients and updates of the rows that the batch looks
            up, each once, and no other array of the size of the table. With `SGD`, `Adagrad` and `RowWiseAdagrad`
            results are the same; `Adam` becomes lazy: moments, momentum and weight decay of a row change in steps
            that look the row up. Such a table must not be used in another way, and has no regularizer or
            constraint.

    Raises:
        DeviceError: the devices have no memory of the kind `slot_memory`.
        UnknownNameError: a name is not known.
        ModelError: neither `loss` nor `train_step` is given, an argument cannot be used, or fit is running.
    """
    arguments = {name: value for name, value in locals().items() if name != "model"}
    model._check_idle("compile")
    keras_model = model._record.keras_model
    if keras_model is not None:
        parameters = inspect.signature(model.compile).parameters
        if all(arguments[name] is parameter.default for name, parameter in parameters.items()):
            arguments |= keras_model.compile_arguments()
    model._record.compile_config = found = _config_of(model, arguments)
    if model._built is not None:
        model._built.compile(found)


def compiled(model: ModelBase) -> bool:
    """Whether `compile` was called."""
    return model._record.compile_config is not None


def optimizers(model: ModelBase) -> dict[str, Any]:
    """The optimizers by name.

    Raises:
        ModelError: the model is not compiled; or it has several, and its weights do not exist yet.
    """
    model._check_compiled("optimizers")
    given = model._compile_config.optimizer
    if not isinstance(given, Mapping):
        return {DEFAULT: given}
    named = model._compiled_model("optimizers").optimizers
    return {name: optimizer.transformation for name, optimizer in named.items()}


def optimizer(model: ModelBase) -> Any:
    """The only optimizer, as `compile` was given it or created it from a name.

    It reads and writes the state of this model; no other model can use it at the same time.

    Raises:
        ModelError: the model is not compiled, or has several optimizers.
    """
    found = model.optimizers
    if len(found) != 1:
        fix = f"model.optimizers[{next(iter(found))!r}]"
        raise ModelError("the model has several optimizers", given=f"optimizers {list(found)}", fix=fix)
    return next(iter(found.values()))


def _config_of(model: ModelBase, arguments: Mapping[str, Any]) -> CompileConfig:
    """Check the arguments of `compile`, and resolve names."""
    options = _step_options(arguments)
    train_step, protocol = _steps_of(model, arguments["train_step"])
    objective = _objective(model, arguments, train_step, protocol)
    scales = check_option("auto_scale_loss", arguments["auto_scale_loss"], _BOOLS)
    optimizer = arguments["optimizer"]
    if not isinstance(optimizer, Mapping) or is_config(optimizer):
        optimizer = get_optimizer(optimizer)
    if scales:
        optimizer = with_loss_scale(optimizer, model.dtype_policy)
    if not isinstance(optimizer, Mapping):
        optimizer = as_optimizer(optimizer, DEFAULT)
    has_metrics = arguments["metrics"] is not None or arguments["weighted_metrics"] is not None
    measured = ModelMetrics(objective if has_metrics else None)
    remat = resolve_remat(arguments["remat"])
    has_own_step = train_step is not None or (protocol is not None and "train" in protocol.steps)
    report = check_report(arguments["report"], has_own_step)
    keys = check_batch_keys(arguments["batch_keys"])
    rowwise = arguments["rowwise"]
    if rowwise is not None and (has_own_step or options.pads or not isinstance(rowwise, str)):
        summary = "`rowwise` must be a regular expression, and excludes `uneven` and a custom train step"
        given = f"rowwise={rowwise!r}, uneven={arguments['uneven']!r}{', a custom train step' * has_own_step}"
        raise ModelError(summary, given=given, fix="leave out one of them; a custom step differentiates whole tables")
    steps = objective, train_step, protocol, measured
    return CompileConfig(arguments, optimizer, *steps, options, remat, report, keys, rowwise)


def _step_options(given: Mapping[str, Any]) -> StepOptions:
    for name in ("run_eagerly", "donate", "check"):
        check_option(name, given[name], _BOOLS)
    check_option("jit_compile", given["jit_compile"], (True, False, "auto"))
    check_option("uneven", given["uneven"], (None, "pad"))
    check_option("slot_memory", given["slot_memory"], (None, "pinned_host"))
    steps, count = given["steps_per_execution"], given["micro_batches"]
    is_auto = isinstance(steps, str) and steps == "auto"
    return StepOptions(
        steps_per_execution=None if is_auto else check_steps("steps_per_execution", steps, "'auto'"),
        jit=not given["run_eagerly"] and given["jit_compile"] is not False,
        donate=bool(given["donate"] and not given["check"]),
        check=bool(given["check"]),
        prefetch=check_steps("prefetch", given["prefetch"], ""),
        pads=given["uneven"] == "pad",
        micro_batches=None if count is None else check_steps("micro_batches", count, "None"),
        slot_memory=given["slot_memory"],
    )


def _objective(
    model: ModelBase, given: Mapping[str, Any], train_step: TrainStep | None, protocol: StepProtocol | None
) -> Objective | None:
    """Return loss and metrics; None for a pure train step without a loss."""
    loss, metrics, weighted_metrics = given["loss"], given["metrics"], given["weighted_metrics"]
    may_add = model._may_add_losses or model._record.keras_model is not None
    is_own = protocol is not None and bool(protocol.steps.keys() & {"train", "test"})
    if loss is None and train_step is not None:
        if metrics or weighted_metrics:
            summary = "compile: nothing would update the metrics"
            fix = 'compile(..., loss="mse"), or leave out metrics and return them in the logs of train_step'
            raise ModelError(summary, given="metrics, and a train_step without a loss", fix=fix)
        return None
    if loss is None and not is_own and not may_add:
        fix = 'for example model.compile("adam", loss="mse"), or a custom train_step'
        raise ModelError("compile: `loss` is missing", given="loss=None, train_step=None", fix=fix)
    layer_names = model.output_names
    names = Outputs(model.output, layer_names).names if model._graph is not None else layer_names
    return resolve_objective(loss, given["loss_weights"], metrics, weighted_metrics, names, layer_names)


def _steps_of(model: ModelBase, given: TrainStep | None) -> tuple[TrainStep | None, StepProtocol | None]:
    """Return the pure train step, which `compile` may give, and the steps in the form of Keras."""
    found: dict[Mode, Any] = {}
    own: dict[Mode, Any] = {mode: _own(model, f"{mode}_step") for mode in _MODES}
    if given is not None:
        check_callable("train_step", given, "state, batch, rngs")
        own["train"] = None
    elif own["train"] is not None and _takes(own["train"], 3):
        given, own["train"] = own["train"], None
    for mode, step in own.items():
        if step is not None:
            if not _takes(step, 2):
                raise _wrong_form(model, mode, step)
            found[mode] = step
    if given is None and _measures_itself(model, has_train_step="train" in found):
        found = {"train": model.train_step, "test": model.test_step, **found}
    return given, StepProtocol(found, model, _prepare) if found else None


def _measures_itself(model: ModelBase, has_train_step: bool) -> bool:
    """Whether the model's class overrides `metrics` or a measuring method, or updates metrics in its loss."""
    if type(model).metrics is not _of_models(model, "metrics"):  # which alone are logged then
        return True
    # beside a custom `train_step`, `compute_loss_and_updates` is often a part of that, with other arguments
    names = _MEASURES if has_train_step else (*_MEASURES, "compute_loss_and_updates")
    if any(_own(model, name) is not None for name in names):
        return True
    return _own(model, "compute_loss") is not None and bool(super(ModelBase, model).metrics)


def _own(model: ModelBase, name: str) -> Any:
    """Return the method of this name if a subclass of `Model` defines it."""
    found = getattr(model, name)
    return None if getattr(found, "__func__", None) is _of_models(model, name) else found


def _of_models(model: ModelBase, name: str) -> Any:
    """Return what `Model` itself has under a name."""
    return [vars(cls)[name] for cls in type(model).__mro__ if issubclass(cls, ModelBase) and name in vars(cls)][-1]


def _takes(step: Any, count: int) -> bool:
    """Whether a step takes exactly this number of arguments."""
    try:
        parameters = list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        return False
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return count == 2
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return len(needed) == count and not any(one.kind is one.KEYWORD_ONLY for one in needed)


def _wrong_form(model: ModelBase, mode: Mode, step: Any) -> ModelError:
    returned = "(outputs, non_trainable_variables)" if mode == "predict" else "(logs, state)"
    expected = f"{mode}_step(self, state, data) -> {returned} with state = ({', '.join(PARTS[mode])})"
    fix = "call the model by self.stateless_call(trainable_variables, non_trainable_variables, x)"
    if mode == "train":
        expected += ", or the pure train_step(self, state, batch, rngs) -> (state, logs)"
        fix += ", and self.optimizer.stateless_apply(optimizer_variables, grads, trainable_variables)"
    summary = f"{type(model).__name__}.{mode}_step does not have the form of Keras on JAX"
    given = f"{mode}_step{inspect.signature(step)}" + (", as for TensorFlow or torch" if _takes(step, 1) else "")
    return ModelError(summary, given=given, expected=expected, fix=fix)


def _prepare(model: ModelBase, state: TrainState, batch: Batch) -> None:
    """Let the metrics of `compile` create their variables, which may depend on targets and outputs (traced)."""
    objective, measured = model._compile_config.objective, model._compile_config.metrics
    if objective is None or (objective.loss is None and measured.compiled is None):
        return
    x, y, sample_weight = batch
    y_pred = model._with_weights(x).forward(state.trainable, state.rest, state.step, x, False)[0]
    with StatelessScope():
        losses = objective.losses(batch, y_pred)
        measured.note_losses(losses, x)
        if measured.compiled is not None:
            measured.compiled.update_state(y, y_pred, sample_weight)
            check_free(measured.compiled.logged or {}, losses)


def get_compile_config(model: ModelBase) -> dict[str, Any]:
    """Return the arguments of `compile` as plain values; an empty dict if the model is not compiled.

    Raises:
        ConfigError: one of them is neither a name, an object of keras_dist, nor registered.

    Differs from Keras: what cannot be read again is an error here, and not only when it is read.
    """
    arguments = model._compile_config.arguments
    return {name: written_argument(name, value) for name, value in arguments.items()}


def compile_from_config(model: ModelBase, config: Mapping[str, Any]) -> None:
    """Compile the model with the result of `get_compile_config`.

    Raises:
        ConfigError: the config names a class or function that is not registered.
    """
    if config:
        model.compile(**deserialize_keras_object(config))
