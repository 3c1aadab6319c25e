"""`Model`: layers that are trained together on the mesh of a distribution."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import jax
from flax import nnx

from keras_dist._support.arguments import check_int, names_unknown_keywords
from keras_dist._support.array_operators import values_in
from keras_dist._support.text_tables import render
from keras_dist._support.types import DTypeLike, PyTree
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import ModelError, shorten
from keras_dist.jobs.job import is_chief
from keras_dist.layers.base.call_arguments import call_parameters, check_numbers
from keras_dist.layers.base.other_frameworks import check_is_ours
from keras_dist.layers.base.shape_calls import stacked_dims
from keras_dist.mixed_precision import DTypePolicy
from keras_dist.models.content_methods import ContentMethods
from keras_dist.models.functional import connect, is_shape
from keras_dist.models.model_record import ModuleSource, adopt, module_is_apart
from keras_dist.models.summary import summary_parts
from keras_dist.symbolic.tensors import KerasTensor, is_any_symbolic
from keras_dist.training.graph import Trainable
from keras_dist.training.naming import named_layers
from keras_dist.training.step import ModuleCall
from keras_dist.variables import call_context


def _then_create_weights(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap `__init__`: create the weights after it, if the inputs are known, under the distribution before it."""

    @functools.wraps(init)
    def outermost(self: Any, *args: Any, **kwargs: Any) -> None:
        record = self._record
        if record.is_constructing:
            init(self, *args, **kwargs)
            return
        record.is_constructing, record.made_under = True, current_distribution()
        try:
            init(self, *args, **kwargs)
            self._check_initialised()
        finally:
            record.is_constructing = False
        named_layers(self)
        if self._graph is not None and self._awaits_layout is None and not stacked_dims():
            self._with_weights()
        self._await_layout()

    return outermost


class Model(ContentMethods):
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

    _has_module: bool = False  # made by `from_nnx` or `from_keras`; also of copies that NNX makes
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

    @_then_create_weights
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
            connect(self, inputs, outputs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let the constructor of a subclass create the weights at its end."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _then_create_weights(vars(cls)["__init__"])  # type: ignore[method-assign]

    @classmethod
    def from_nnx(
        cls,
        factory_or_module: nnx.Module | Callable[..., nnx.Module],
        call: ModuleCall | None = None,
        *,
        trainable: Trainable = None,
        seed: int | None = None,
        dtype: DTypeLike | DTypePolicy | None = None,
    ) -> Self:
        """Create a model from any `flax.nnx.Module`, on the current distribution, by default on the first device.

        Under a mixed policy, steps cast floating inputs and parameters (`nnx.Param`) to half precision. Values,
        gradients, slots, statistics, outputs, losses and metrics stay float32. Each module that owns parameters casts
        its floating inputs, as a layer does. Values that a call assigns to a parameter are dropped. A module with an
        attribute `dtype` computes in that dtype, on its float32 parameters. A warning names such modules, and modules
        in which other float32 arrays promote half precision.

        Args:
            factory_or_module: a function of `flax.nnx.Rngs` that makes the module; its arrays are created sharded,
                never whole on one device. Its only required argument is called `rngs`, or is positional. Or an
                existing module, which is copied and never changed. `model.module` is the module that is trained: pass
                it, not the model, to functions of NNX and to other models.
            call: `call(module, x, training, rngs) -> y_pred` for modules that are not called as `module(x)`; by default
                `module.train()` or `module.eval()`, then `module(x)`.
            trainable: filter of the trained variables: an NNX filter, or a regular expression for whole paths of
                parameters; by default every `nnx.Param`.
            seed: fixes initial values and Dropout; by default the seed of `kd.set_random_seed`, else a fresh seed.
            dtype: a policy: `"mixed_bfloat16"`, `"mixed_float16"`, or with parameters that stay float32
                `DTypePolicy("mixed_bfloat16", keep=".*norm.*|router/.*")`; by default the current policy.

        Raises:
            ModelError: the factory does not return an NNX module, or `trainable` selects nothing.
            LayoutError: the layout rules cannot be applied.

        Example:
            >>> import keras_dist as kd
            >>> from flax import nnx
            >>> model = kd.Model.from_nnx(lambda rngs: nnx.Linear(8, 2, rngs=rngs), seed=0)
            >>> [variable.path for variable in model.variables]
            ['bias', 'kernel']
        """
        model = cls()
        model._has_module = True
        if dtype is not None:
            model.dtype_policy = dtype
        model._record.source = ModuleSource(factory_or_module, call, trainable, seed, model.dtype_policy)
        return model._with_its_module()

    @classmethod
    def from_keras(cls, model: Any, *, seed: int | None = None) -> Self:
        """Create a model from a Keras model object, on the current distribution, by default on the first device.

        Any built `keras.Model` on Keras's JAX backend is accepted: functional, `Sequential`, subclassed, of KerasHub.
        It is called through its `stateless_call`. Layout rules match Keras's `variable.path`. Losses of layers and
        regularizers, masks, statistics and the seeds of Dropout work as in Keras's `fit`. The variables that Keras
        trains now are trained: set `trainable` of its layers before.

        The Keras object keeps its values on the host: no device has a whole copy beside the shards. It does not change
        while this model is trained; `to_keras` writes the weights into it.

        Args:
            model: a built `keras.Model`. `compile()` without arguments uses the arguments with which it was compiled.
            seed: fixes the order of rows; by default the seed of `kd.set_random_seed`, else a fresh seed.

        Raises:
            LayoutError: the layout rules cannot be applied.
            ModelError: `model` is not a Keras model, runs on another backend, is not built, or has a distribution of
                Keras.
        """
        source = adopt(model)
        made = cls(name=model.name, dtype=model.dtype_policy.name)
        made._has_module = True
        made._record.source = ModuleSource.of_keras(source, seed)
        made._record.keras_model = source
        return made._with_its_module()

    def _with_its_module(self) -> Self:
        """Create the weights, unless `fit` has to find their layout."""
        if self._awaits_layout is None:
            self._with_weights()
        return self

    def to_keras(self) -> Any:
        """Write the weights to the Keras model object that was passed to `from_keras`, and return this object.

        Its `predict`, `evaluate` and `save` then use them. It keeps them until the next call of `to_keras`. The
        variables are gathered on the host one at a time. The state of the optimizer is not written. In a job all
        processes must call it.

        Raises:
            ModelError: the model was not made by `from_keras`.
        """
        source = self._record.keras_model
        if source is None:
            summary = "to_keras: the model was not made by from_keras"
            fix = "model.save(path), or keras_model.set_weights(model.get_weights()) with a Keras model like it"
            raise ModelError(summary, given=f"a {type(self).__name__} of keras_dist", fix=fix)
        for variable in self.variables:
            source.take(variable.path, variable.numpy())
        return source.model

    def build(self, input_shape: PyTree = None) -> None:
        """Create the weights for inputs of this shape, including the batch dim.

        Args:
            input_shape: one shape, or a list or dict of shapes; None for a model that knows its inputs.

        Raises:
            ModelError: the model does not accept such inputs.
        """
        if call_context.current() is not None or self._built is not None:
            return  # in a call each layer builds itself
        if input_shape is None:
            self._with_weights()
            return
        self._build_for(jax.tree.map(lambda shape: KerasTensor(shape, self.dtype), input_shape, is_leaf=is_shape))

    build.creates_weights = True  # type: ignore[attr-defined]  # of its layers; the model itself has none

    def call(self, inputs: PyTree, training: bool | None = None, mask: PyTree = None) -> PyTree:
        """Return the outputs of a functional model. Subclasses define their own."""
        if self._has_module:
            raise module_is_apart(self.name)
        if self._graph is None:
            raise NotImplementedError(f"{type(self).__name__} does not define call(self, inputs)")
        return self._graph.on_devices.run(vars(self._members), inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return the outputs for arrays, on the model's mesh; for symbolic inputs symbolic outputs.

        Arrays and NumPy floats are arguments of a compiled program. All other arguments are static: each value compiles
        a program. They must be hashable, and must not change: an object whose class defines no `__eq__` is equal after
        its attributes have changed, and gives the old outputs. Pass values that change as arrays.

        Raises:
            ModelError: the inputs do not fit, or an argument is neither an array nor hashable.
        """
        args, kwargs = values_in((args, kwargs))
        is_symbolic = is_any_symbolic((args, kwargs))
        if is_symbolic and self._graph is not None:
            self._check_one_side()
            return self._graph.structured(super().__call__(*args, **kwargs))
        is_part = self._built is None and self._is_built
        if is_symbolic or call_context.current() is not None or "_is_built" not in vars(self) or is_part:
            return super().__call__(*args, **kwargs)
        if args and self._has_host_part:
            args = (self._prepared(args[0]), *args[1:])
        check_numbers(call_parameters(type(self)), args, kwargs, self.name)
        return self._with_weights(*args, **kwargs).call(args, kwargs)

    def compute_output_shape(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Return the shapes of the outputs for inputs of this shape, including the batch dim."""
        shapes = super().compute_output_shape(*args, **kwargs)
        return shapes if self._graph is None else self._graph.structured(shapes)

    compute_output_shape.is_default = True  # type: ignore[attr-defined]

    @names_unknown_keywords
    def summary(
        self,
        line_length: int | None = None,
        positions: Sequence[float] | None = None,
        print_fn: Callable[[str], object] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """Print a table of the layers, their output shapes, variables, layouts and bytes per device.

        For models of `from_nnx` the table lists the variables only.

        Args:
            line_length: width of the table in characters; by default `COLUMNS` of the environment, else the width of
                the terminal, 120 in a notebook, and the width of the table in a pipe or a file. In a small width cells
                are wrapped and columns omitted; a line below the table names them.
            positions: ignored; columns are as wide as their contents.
            print_fn: called with the text instead of printing it, in a job in each process; by default the first
                process prints.
            expand_nested: whether the layers of inner models are listed.
            show_trainable: whether a column shows which layers are trained.
            layer_range: names of the first and last layer to show, or regular expressions for them.

        Raises:
            ModelError: an argument cannot be used.
        """
        if line_length is not None:
            check_int("line_length", line_length, 40, alternative="None", example=120)
        parts = summary_parts(self, expand_nested, show_trainable, layer_range)
        if print_fn is not None:
            print_fn(render(*parts, line_length=line_length))
        elif is_chief():
            sys.stdout.write(f"{render(*parts, line_length=line_length)}\n")
