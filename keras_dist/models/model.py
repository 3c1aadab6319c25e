"""`Model`: layers that are trained together on the mesh of a distribution.

The class is a table of its methods, which are functions of the modules beside this one.
"""

# The methods of `Layer` call their first parameter `self`, which Pyright takes for another signature.
# pyright: reportAssignmentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flax import nnx

from keras_dist._support.types import PyTree
from keras_dist.adapters import enabling, peft_saving, quantizing
from keras_dist.errors import ModelError, shorten
from keras_dist.layers import Layer
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.models import (
    abstract_models,
    calling,
    compiling,
    config,
    contents,
    describing,
    exporting,
    fitting,
    foreign_models,
    layouts,
    saving,
    steps,
    summary,
    values,
    weight_changes,
    weight_creation,
)
from keras_dist.models.functional import connected
from keras_dist.models.model_base import ModelBase

if TYPE_CHECKING:
    from flax.nnx.module import ModuleMeta as _LayerType
else:
    _LayerType = type(Layer)


class ModelType(_LayerType):
    """The class of `Model` and its subclasses.

    Weights are planned after the constructor of a subclass, which may add layers after `super().__init__`.
    """

    if not TYPE_CHECKING:  # which would take `Any` for the type of all models

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Make a model, and plan its weights if it knows its inputs."""
            model = super().__call__(*args, **kwargs)
            abstract_models.complete(model)
            return model


class Model(ModelBase, metaclass=ModelType):
    """Layers that are trained together on the mesh of a distribution.

    The distribution is the current one when the model is made, or else when its weights are created. Without any, a
    model whose layers have layouts with a mesh, such as `kernel_layout=TensorLayout((None, None), mesh)`, uses that
    mesh as under an empty `LayoutMap`, with the batch over the axis `batch`, or else over the first axis. Other models
    use the first device. Models inside of another model use the distribution of the outermost model.

    There are four ways to make a model: from symbolic tensors, `Model(inputs, outputs)`; by a subclass that defines
    `call(self, inputs)`; as a `Sequential`; or from any `flax.nnx` module, `Model.from_nnx(factory)`.

    Args:
        inputs: symbolic inputs, as `Input` returns them: one tensor, or a list or dict of tensors.
        outputs: symbolic outputs that layers returned for them: one tensor, or a list or dict of tensors.
        name: name of the model; paths contain it only as an alias.
        trainable: whether the weights are trained.
        **kwargs: arguments of `Layer`.

    Raises:
        ModelError: the graph is disconnected, or two layers have the same name.
        LayoutError: the layout rules cannot be applied.

    Example:
        >>> import keras_dist as kd
        >>> from keras_dist import layers
        >>> inputs = kd.Input((8,))
        >>> hidden = layers.Dense(16, activation="relu", name="d1")(inputs)
        >>> model = kd.Model(inputs, layers.Dense(3, name="d2")(hidden))
        >>> [weight.path for weight in model.weights]
        ['d1/kernel', 'd1/bias', 'd2/kernel', 'd2/bias']

    Differs from Keras: models that share a layer use one mesh, and only one of them trains at a time.
    Functional models are instances of `Model` itself; `model.inputs` are their inputs.

    Source: `keras.Model`.
    """

    _takes_keep: ClassVar[bool] = True
    _never_called: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            ("make_train_function", "make_test_function", "make_predict_function"),
            "override train_step, test_step or predict_step: steps are compiled when they are first needed",
        ),
        **dict.fromkeys(
            ("trainable_variables", "trainable_weights", "non_trainable_variables", "non_trainable_weights"),
            "set `trainable` of layers, or add_weight(..., trainable=False)",
        ),
        "stateless_call": "override `call`",
    }

    def __init__(
        self,
        inputs: PyTree = None,
        outputs: PyTree = None,
        name: str | None = None,
        *,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        if isinstance(inputs, nnx.Module):
            summary = "Model is not made of a flax.nnx module by calling it"
            fix = "kd.Model.from_nnx(lambda rngs: MyNet(rngs=rngs))"
            raise ModelError(summary, given=f"Model({shorten(inputs)})", fix=fix)
        if (inputs is None) != (outputs is None):
            check_is_ours("Model: `inputs`: it", inputs)
            given = f"inputs={shorten(inputs)}, outputs={shorten(outputs)}"
            raise ModelError("Model needs `inputs` and `outputs`", given=given, fix="Model(inputs, outputs)")
        super().__init__(name=name, trainable=trainable, **kwargs)
        if name is None and inputs is not None and type(self) is Model:
            self._base_name = self._name = "functional"
        if inputs is not None:
            self._members, self._graph = connected(inputs, outputs)

    from_nnx = classmethod(foreign_models.from_nnx)
    from_keras = classmethod(foreign_models.from_keras)
    to_keras = foreign_models.to_keras

    build = calling.build
    call = calling.call
    __call__ = calling.__call__
    compute_output_shape = calling.compute_output_shape

    layers = property(contents.layers)
    operations = property(contents.operations)
    get_layer = contents.get_layer
    inputs = property(contents.inputs)
    outputs = property(contents.outputs)
    input = property(contents.input)
    output = property(contents.output)
    input_names = property(contents.input_names)
    output_names = property(contents.output_names)
    input_shape = property(contents.input_shape)
    output_shape = property(contents.output_shape)
    variables = property(contents.variables)
    weights = property(contents.weights)
    count_params = contents.count_params
    summary = summary.summary
    is_host_side = property(contents.is_host_side)
    transform = contents.transform
    output_like = contents.output_like

    distribution = property(layouts.distribution)
    layout_plan = property(layouts.layout_plan)
    state_plan = property(layouts.state_plan)
    redistribute = layouts.redistribute
    plan = layouts.plan

    compile = compiling.compile
    compiled = property(compiling.compiled)
    optimizers = property(compiling.optimizers)
    optimizer = property(compiling.optimizer)

    fit = fitting.fit
    evaluate = fitting.evaluate
    predict = fitting.predict
    train_on_batch = fitting.train_on_batch
    test_on_batch = fitting.test_on_batch
    predict_on_batch = fitting.predict_on_batch
    lower_train_step = fitting.lower_train_step
    history = property(fitting.history)
    stop_training = fitting.stop_flag("train", "fit")
    stop_evaluating = fitting.stop_flag("test", "evaluate")
    stop_predicting = fitting.stop_flag("predict", "predict")

    train_step = steps.train_step
    test_step = steps.test_step
    predict_step = steps.predict_step
    compute_loss = steps.compute_loss
    stateless_compute_loss = steps.stateless_compute_loss
    compute_loss_and_updates = steps.compute_loss_and_updates
    compute_metrics = steps.compute_metrics
    losses = property(steps.losses)
    metrics = property(steps.metrics)
    metrics_names = property(steps.metrics_names)
    reset_metrics = steps.reset_metrics
    get_metrics_result = steps.get_metrics_result

    state = property(values.state)
    module = property(values.module, values.set_module)
    merge = values.merge
    split = values.split
    stateless_call = values.stateless_call
    apply_gradients = values.apply_gradients
    get_state_tree = describing.get_state_tree
    set_state_tree = describing.set_state_tree

    enable_lora = enabling.enable_lora
    merge_lora = enabling.merge_lora
    quantize = quantizing.quantize
    save_adapter = peft_saving.save_adapter
    load_adapter = peft_saving.load_adapter

    save = saving.save
    save_weights = saving.save_weights
    load_weights = saving.load_weights
    snapshot = saving.snapshot
    at_rest = saving.at_rest
    restore = saving.restore
    export = exporting.export

    get_config = config.get_config
    from_config: Any = classmethod(config.from_config)
    to_json = config.to_json
    get_build_config = describing.get_build_config
    build_from_config = describing.build_from_config
    get_compile_config = compiling.get_compile_config
    compile_from_config = compiling.compile_from_config
    __reduce_ex__ = describing.reduced
    __deepcopy__ = describing.copied
    __copy__ = describing.copied

    _with_weights = weight_creation.with_weights
    _change_weights = weight_changes.change_weights
    _ready_to_train = fitting.ready_to_train
    _forward_on = abstract_models.forward_on
