"""`Model`: layers that are trained together, on the mesh of a distribution."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from rich.console import Console

from keras_dist import random
from keras_dist._arguments import check_callable, check_int
from keras_dist.distribution.devices import check_not_forked
from keras_dist.distribution.plan import LayoutPlan
from keras_dist.distribution.render import TABLE_WIDTH, render_text
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.distribution.tracing import traced_in
from keras_dist.errors import DistributionError, ModelError, shorten, type_name
from keras_dist.layers import call_context
from keras_dist.layers.call_arguments import call_parameters, check_numbers
from keras_dist.layers.other_libraries import check_is_no_function, check_is_ours
from keras_dist.layers.symbolic import KerasTensor, is_any_symbolic
from keras_dist.models.birth import give_birth
from keras_dist.models.connecting import Connecting
from keras_dist.models.custom_steps import CustomSteps
from keras_dist.models.exporting import Exporting
from keras_dist.models.fitting import Fitting
from keras_dist.models.pickling import Pickling
from keras_dist.models.program import Program
from keras_dist.models.session import Choices, ModuleCall, Session, distribution_now, not_compiled
from keras_dist.models.summary import layer_table, module_table
from keras_dist.models.weights_file import WeightsFile
from keras_dist.training.graph import split_module, trace_factory
from keras_dist.training.state_cell import StateCell
from keras_dist.training.step import default_call


def _then_born(init: Callable[..., None]) -> Callable[..., None]:
    """`__init__`, after which the weights are born, if the inputs are known: not before all attributes are set.

    The model remembers the distribution that is current before it.
    """

    @functools.wraps(init)
    def outermost(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_in_constructor" in vars(self):
            init(self, *args, **kwargs)
            return
        object.__setattr__(self, "_in_constructor", True)
        object.__setattr__(self, "_made_under", current_distribution())
        try:
            init(self, *args, **kwargs)
            self._check_initialised()
        finally:
            object.__delattr__(self, "_in_constructor")
        if vars(self).get("_program") is not None:
            self._born()

    return outermost


class Model(CustomSteps, Fitting, Connecting, Pickling, WeightsFile, Exporting):
    """Layers that are trained together, on the mesh of the distribution that was current when the model was made.

    One that was made without a distribution takes that which is current when its weights are born, and without any the
    first device. Models among the layers live where the outermost one does.

    Made in one of four ways: of symbolic tensors, `Model(inputs, outputs)`; by a subclass with `call(self, inputs)`; as
    a `Sequential`; or of any `flax.nnx` module, `Model.from_nnx(factory)`.

    Args:
        inputs: what `Input` gave: one symbolic tensor, a list or a dict of them.
        outputs: what layers gave for them, likewise.
        name: its name; paths leave it out, except as an alias.
        trainable: whether its weights are trained.
        **kwargs: as of `Layer`.

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

    Differs from Keras: models that share a layer share its values, but each has arrays of its own, on its own mesh.
    Functional models have no class of their own: `type(model)` is `Model`, and `model.inputs` are its inputs.

    Source: `keras.Model`.
    """

    @_then_born
    def __init__(
        self, inputs: Any = None, outputs: Any = None, name: str | None = None, *, trainable: bool = True, **kwargs: Any
    ) -> None:
        if isinstance(inputs, nnx.Module):
            raise ModelError(
                "Model is not made of a flax.nnx module by calling it",
                given=f"Model({shorten(inputs)})",
                expected="symbolic inputs and outputs",
                fix="kd.Model.from_nnx(lambda rngs: MyNet(rngs=rngs))",
            )
        if (inputs is None) != (outputs is None):
            check_is_ours("Model: `inputs`: it", inputs)
            raise ModelError(
                "Model needs `inputs` and `outputs`",
                given=f"inputs={shorten(inputs)}, outputs={shorten(outputs)}",
                expected="both, or neither in a subclass",
                fix="Model(inputs, outputs)",
            )
        super().__init__(name=name, trainable=trainable, **kwargs)
        if name is None and inputs is not None and type(self) is Model:
            self._base_name = self._name = "functional"
        self._program: Program | None = None
        if inputs is not None:
            self._connect(inputs, outputs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """See that the weights are born when the constructor is through, whoever wrote it."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _then_born(vars(cls)["__init__"])  # type: ignore[method-assign]

    @classmethod
    def from_nnx(
        cls,
        factory_or_module: Any,
        call: ModuleCall | None = None,
        *,
        trainable: Any = None,
        seed: int | None = None,
    ) -> Model:
        """A model made of any `flax.nnx.Module`, on the current distribution; without any, on the first device.

        Args:
            factory_or_module: `factory(rngs=rngs)` that makes the module: its arrays are born sharded, never whole on
                one device. Or a ready module: its arrays are copied, the module is never changed.
            call: `call(module, x, training, rngs) -> y_pred` for modules that are not called as `module(x)`; by default
                `module.train()` or `module.eval()`, then `module(x)`.
            trainable: which variables are trained: an NNX filter, or a regular expression for whole paths of
                parameters; by default every `nnx.Param`.
            seed: fixes initial values and Dropout; by default that of `kd.set_random_seed`, else a fresh one.

        Raises:
            ModelError: the factory does not make an NNX module, or `trainable` selects nothing.
            LayoutError: the layout rules cannot be applied to it.

        Example:
            >>> import keras_dist as kd
            >>> from flax import nnx
            >>> model = kd.Model.from_nnx(lambda rngs: nnx.Linear(8, 2, rngs=rngs), seed=0)
            >>> [variable.path for variable in model.variables]
            ['bias', 'kernel']
        """
        check_not_forked()
        if call is not None:
            check_callable("call", call, "module, x, training, rngs")
        check_is_ours("from_nnx: what was given", factory_or_module)
        if not isinstance(factory_or_module, nnx.Module):
            check_is_no_function(factory_or_module)
        seed = random.current_seed() if seed is None else random.check_seed(seed)
        distribution = distribution_now(current_distribution())
        if isinstance(factory_or_module, nnx.Module):
            graph, state = split_module(factory_or_module, trainable)
            plan = distribution.plan_variables(graph.specs, graph.treedef)
            cell = StateCell(graph, plan, plan.place(state))
        elif callable(factory_or_module):
            graph, init = traced_in(distribution, None, lambda: trace_factory(factory_or_module, seed, trainable))
            plan = distribution.plan_variables(graph.specs, graph.treedef)
            cell = StateCell(graph, plan, plan.init(init))
        else:
            raise ModelError(
                "from_nnx: neither a module nor a factory",
                given=f"{shorten(factory_or_module)} of type {type(factory_or_module).__name__}",
                expected="a flax.nnx.Module, or a callable factory(rngs=rngs) that returns one",
                fix="Model.from_nnx(lambda rngs: MyNet(rngs=rngs))",
            )
        model = cls()
        model._enter(Session(cell, call or default_call, distribution, seed))
        return model

    # Calls

    def build(self, input_shape: Any = None) -> None:
        """Give birth to the weights, for inputs of this shape, the batch included.

        Args:
            input_shape: one shape, or a list or dict of them; None where the model knows its inputs.

        Raises:
            ModelError: the model takes no such input.
        """
        if call_context.current() is not None or getattr(self, "_session", None) is not None:
            return  # inside of a call each layer builds itself
        if input_shape is None:
            self._born()
            return
        self._build_for(jax.tree.map(lambda shape: KerasTensor(shape, self.dtype), input_shape, is_leaf=_is_shape))

    build.gives_birth = True  # type: ignore[attr-defined]  # to the weights of its layers; it has none to note

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """The outputs of a functional model. Subclasses define their own."""
        if self._program is None:
            raise NotImplementedError(f"{type(self).__name__} does not define call(self, inputs)")
        return self._program.run(vars(self._members), inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for arrays, on the model's mesh; for symbolic inputs symbolic outputs.

        Raises:
            ModelError: the inputs do not fit.
        """
        session = getattr(self, "_session", None)
        program = vars(self).get("_program")
        if program is not None and is_any_symbolic((args, kwargs)):
            return program.structured(super().__call__(*args, **kwargs))
        if is_any_symbolic((args, kwargs)) or call_context.current() is not None or "_is_built" not in vars(self):
            return super().__call__(*args, **kwargs)
        if session is None and getattr(self, "_home", None) is not None:
            return super().__call__(*args, **kwargs)
        check_numbers(call_parameters(type(self)), args, kwargs, self.name)
        return self._born(*args, **kwargs).call(args, kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shapes of the outputs for inputs of this shape, the batch included, in the structure of the outputs."""
        shapes = super().compute_output_shape(input_shape)
        return shapes if self._program is None else self._program.structured(shapes)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """The loss of a batch, a scalar: what `compile` chose, and what layers and regularizers add.

        A subclass may define its own. It runs inside the compiled step, on the model whose values the step trains: use
        arguments and weights, return a scalar, change nothing. In a `train_step` of one's own it gives what `compile`
        chose; `stateless_call(..., return_losses=True)` gives the rest.

        Args:
            x: inputs.
            y: targets.
            y_pred: what the model gave for `x`.
            sample_weight: a weight for each example, or None.
            training: whether the model is being trained.

        Source: `keras.Model.compute_loss`.
        """
        context = call_context.current()
        if context is not None and context.compiled_loss is not None:
            chosen = context.compiled_loss((x, y, sample_weight), y_pred)
            losses = [*([] if chosen is None else [chosen]), *self.losses]
            if not losses:
                raise ModelError(
                    f"there is nothing to minimise in model {self.name!r}",
                    given="compile without a loss, and no layer or regularizer that adds one",
                    expected="a loss",
                    fix='for example model.compile("adam", loss="mse"), or add_loss in a layer',
                )
            return sum(losses[1:], losses[0])
        objective = self._compiled("compute_loss").objective("compute_loss")
        return objective.losses((x, y, sample_weight), y_pred)["loss"]

    # Weights

    @property
    def variables(self) -> list[Any]:
        """Handles on all variables; of models of layers, `weights` and the states of random generators."""
        home = getattr(self, "_home", None)
        return self._born().variables() if home is None else [*home.weights(), *home.generators()]

    @property
    def weights(self) -> list[Any]:
        """Handles on the weights, in Keras's order; the keys of random streams are none.

        Raises:
            ModelError: the weights are not born yet.
        """
        return [variable for variable in self.variables if not variable.is_key]

    def count_params(self) -> int:
        """The number of elements of all weights."""
        return sum(int(np.prod(weight.shape)) for weight in self.weights)

    def summary(
        self,
        line_length: int | None = None,
        positions: Any = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """Print every layer with the shape of its output, its variables with layout and bytes per device, and totals.

        Models of `from_nnx` list their variables alone.

        Args:
            line_length: width of the table in characters; by default that of the terminal.
            positions: as in Keras; not used, since columns are as wide as what is in them.
            print_fn: called with the text instead of printing it.
            expand_nested: whether the layers of models among the layers have lines of their own.
            show_trainable: whether a column tells what is trained.
            layer_range: names of the first and last layer to be shown, or regular expressions for them.

        Raises:
            ModelError: an argument cannot be used.

        Source: `keras.Model.summary`.
        """
        del positions
        if line_length is not None:
            check_int(
                "line_length", line_length, 40, wrong="is not the width of a table", alternative="None", example=120
            )
        session = self._born() if self._program is not None else getattr(self, "_session", None)
        if session is not None and getattr(self, "_home", None) is None:
            table = module_table(session.cell.plan, session.cell.state_plan)
        else:
            table = layer_table(self, session, expand_nested, show_trainable, layer_range)
        if print_fn is not None:
            print_fn(render_text(table, line_length or TABLE_WIDTH))
            return
        terminal = Console(width=line_length)
        (terminal if terminal.is_terminal or line_length else Console(width=TABLE_WIDTH)).print(table)

    # Where it lives

    @property
    def distribution(self) -> Distribution:
        """The distribution of the model, as it was when its weights were born or moved."""
        return self._born().distribution

    @property
    def layout_plan(self) -> LayoutPlan:
        """Where every variable lives; print it for the table."""
        return self._born().cell.plan

    @property
    def state_plan(self) -> LayoutPlan:
        """Where everything in the training state lives: variables, optimizer slots, the step."""
        return self._born().cell.state_plan

    def redistribute(self, distribution: Distribution) -> None:
        """Move the model, with everything it has learned, to another distribution.

        Raises:
            DistributionError: `distribution` is not a distribution.
            LayoutError: its rules cannot be applied; the model stays where it was.
            ModelError: fit is running.
        """
        self._check_idle("redistribute")
        if not isinstance(distribution, Distribution):
            raise DistributionError(
                "redistribute: `distribution` is not a Distribution",
                given=f"{shorten(distribution)} of type {type_name(distribution)}",
                expected="a DataParallel, ModelParallel, FullySharded or your own Distribution",
                fix="for example model.redistribute(DataParallel())",
            )
        self._born().redistribute(distribution)
        object.__setattr__(self, "_made_under", distribution)

    # How it comes to be

    @property
    def _casts_inputs(self) -> bool:
        # a functional model casts them to what its symbolic inputs are
        return self.autocast and self._program is None

    def _born(self, x: Any = None, *others: Any, **options: Any) -> Session:
        check_not_forked()
        session = getattr(self, "_session", None)
        if session is not None:
            return session
        if self._program is not None:
            return self._give_birth(self.input)
        args = () if x is None else (x, *others)
        if not jax.tree.leaves((args, options)):
            raise ModelError(
                f"the weights of model {self.name!r} are not born yet: it has seen no input",
                given=f"a {type(self).__name__} without Input",
                expected="a model that knows its input",
                fix="model.build((None, 28, 28, 1)), fit it, call it on an array, or start a Sequential with Input",
            )
        options.pop("training", None)
        args, options = jax.tree.map(_tensor_for_batch, (args, options))
        return self._give_birth(*args, **options)

    def _build_for(self, tensors: Any) -> None:
        if getattr(self, "_session", None) is None:
            self._give_birth(tensors)

    def _give_birth(self, *args: Any, **kwargs: Any) -> Session:
        check_not_forked()
        self._check_initialised()
        chosen = current_distribution() if self._made_under is None else self._made_under
        session = give_birth(self, (args, kwargs), random.current_seed(), chosen)
        object.__setattr__(self, "_made_under", chosen)
        object.__setattr__(self, "_born_for", args[0] if len(args) == 1 and not kwargs else None)
        self._enter(session)
        choices = getattr(self, "_choices", None)
        if choices is not None:
            session.compile(choices)
        return session

    @property
    def _may_add_losses(self) -> bool:
        """Whether its layers, regularizers and `compute_loss` count: not for foreign modules."""
        return getattr(self, "_session", None) is None or getattr(self, "_home", None) is not None

    def _enter(self, session: Session) -> None:
        object.__setattr__(self, "_session", session)

    def _choose(self, choices: Choices) -> None:
        check_not_forked()
        object.__setattr__(self, "_choices", choices)
        session = getattr(self, "_session", None)
        if session is not None:
            if getattr(self, "_home", None) is not None:
                session.release_optimizers()
                self._apply_trainable(session)
            session.compile(choices)

    def _apply_trainable(self, session: Session) -> None:
        """Train what the layers say now. Nothing happens while they say what they said before."""
        trainability, graph = session.trainability, session.cell.graph
        if trainability is None:
            return
        flags, stated = trainability.flags(), trainability.stated()
        if (flags, stated) != (graph.trained, session.stated):
            session.cell.use(graph.edited(trainability.tell, flags))
            session.stated = stated

    def _check_compiled(self, method: str) -> None:
        if getattr(self, "_choices", None) is None:
            raise not_compiled(method)

    def _compiled(self, method: str, x: Any = None) -> Session:
        self._check_compiled(method)
        return self._born(x)

    def _check_idle(self, method: str) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.check_idle(method)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(size is None or isinstance(size, int | np.integer) for size in value)


def _tensor_for_batch(value: Any) -> Any:
    """The symbolic tensor for batches of rows like those of an array; anything else as it is."""
    if not hasattr(value, "shape"):
        return value
    dtype = jax.dtypes.canonicalize_dtype(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype)
    return KerasTensor((None, *value.shape[1:]) if value.shape else (), dtype)
