"""`ModelBase`: the state of a model, by which the modules of its methods are typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from keras_dist._support.types import PyTree
from keras_dist.distribution.strategy import Distribution
from keras_dist.distribution.strategy import distribution as current_distribution
from keras_dist.errors import ModelError
from keras_dist.formats.weight_map import WeightMap
from keras_dist.layers import Layer
from keras_dist.models.functional import Graph, replaced
from keras_dist.models.model_distribution import no_layout_yet
from keras_dist.models.model_record import ModelRecord
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.compile_config import CompileConfig


class ModelBase(Layer):
    """The state of a model, and what its subclasses override in it."""

    _record: ModelRecord  # type: ignore[reportIncompatibleVariableOverride]
    _record_type = ModelRecord
    _members: Any  # layers by name
    _graph: Graph | None = None
    _has_module: bool = False  # made by `from_nnx` or `from_keras`; also of copies that NNX makes

    if TYPE_CHECKING:  # methods in the table of `Model` that other methods call
        input_names: Any
        layers: Any
        optimizer: Any
        optimizers: Any
        output_names: Any
        distribution: Any
        compile: Any
        get_compile_config: Any
        compile_from_config: Any
        at_rest: Any

        def _with_weights(self, *args: Any, **kwargs: Any) -> BuiltModel: ...

        def _ready_to_train(self, method: str, x: Any) -> BuiltModel: ...

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note the current distribution, which the model keeps."""
        self = super().__new__(cls, *args, **kwargs)
        self._record.made_under = current_distribution()
        return self

    @property
    def _built(self) -> BuiltModel | None:
        return self._record.built

    @property
    def _compile_config(self) -> CompileConfig:
        return self._record.compile_config or CompileConfig()

    @property
    def _awaits_layout(self) -> Distribution | None:
        """The `AutoParallel` that will find the layout in `fit`; None without one."""
        asked = self._record.made_under
        return asked if self._built is None and asked is not None and asked.is_searched else None

    def check_may_create(self) -> None:
        """Raise if `AutoParallel` has not found the layout of the weights yet."""
        if self._awaits_layout is not None:
            raise no_layout_yet(f"values of model {self.name!r}, whose variables are deferred")

    @property
    def _casts_inputs(self) -> bool:
        return self.autocast and self._graph is None  # a functional model casts them to the dtypes of its inputs

    @property
    def _may_add_losses(self) -> bool:
        """Whether layers, regularizers and `compute_loss` contribute to the loss: not in foreign modules."""
        return self._record.source is None

    @property
    def _symbols(self) -> tuple[PyTree, PyTree] | None:
        return None if self._graph is None else (self._graph.inputs, self._graph.outputs)

    @property
    def _has_host_part(self) -> bool:
        """Whether the first layers run on the host."""
        return self._graph is not None and bool(self._graph.host_nodes)

    def _prepared(self, x: PyTree) -> PyTree:
        """Return the inputs of the compiled part of the model, computed by the layers on the host."""
        if self._graph is None or not self._graph.host_nodes:
            return x
        return replaced(self._graph.on_devices.inputs, self._graph.run_on_host(x))

    def _check_idle(self, method: str) -> None:
        """Check that the model is not training."""
        if self._built is not None and self._built.cell.is_training:
            given = f"{method} in a callback, or in another thread, while the model trains"
            fix = f"end the training with model.stop_training = True, and call {method} after it"
            raise ModelError(f"{method}: fit is running", given=given, fix=fix)

    def _check_compiled(self, method: str) -> None:
        if self._record.compile_config is None:
            summary = f"You must call `compile()` before using the model: {method} needs it"
            fix = 'for example model.compile("adam", loss="mse")'
            raise ModelError(summary, given="a model that is not compiled", fix=fix)

    def _compiled_model(self, method: str, x: Any = None) -> BuiltModel:
        """Return the built model; raise unless it is compiled."""
        self._check_compiled(method)
        return self._with_weights(x)

    def _map_of_base(self) -> WeightMap | None:
        """Return the names of weights in files of the base; None for our own."""
        return None
