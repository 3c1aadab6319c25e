"""`Pickling`: a model for `pickle` and `copy`: its config and its arrays."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from keras_dist import _jax
from keras_dist.distribution.placement import place_copy
from keras_dist.errors import ModelError
from keras_dist.mixed_precision import dtype_policy, set_dtype_policy
from keras_dist.models.checkpointing import Checkpointing, names_of
from keras_dist.models.configuring import Configuring
from keras_dist.saving import deserialize_keras_object, serialize_keras_object
from keras_dist.training.state_cell import host_copy


class Pickling(Configuring, Checkpointing):
    """A model for `pickle` and `copy`. Subclasses say when the weights are born."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """How the model is made again, on the distribution that is current then, with the state of its optimizer.

        Raises:
            ConfigError: it cannot be written down.
            ModelError: there are several processes.

        Source: `keras.src.saving.keras_saveable.KerasSaveable.__reduce__`.
        """
        del protocol
        self._check_one_process()
        self._check_described()
        own = {type(owner) for owner in self._owners() if not type(owner).__module__.startswith("keras_dist.")}
        custom_objects = {cls.__name__: cls for cls in own}
        documents = (serialize_keras_object(self), self._written_compile(), self.dtype_policy.name)
        state = None
        if getattr(self, "_home", None) is not None:
            session = self._born()
            with self.at_rest():
                arrays = [host_copy(array) for array in session.cell.arrays]
            state = (session.seed, session.fits, dict(zip(names_of(session), arrays, strict=True)))
        return _made_again, (custom_objects, *documents, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A model of its own, on the same distribution."""
        del memo
        make, arguments = self.__reduce_ex__(4)
        made_under = getattr(self, "_made_under", None) if arguments[-1] is None else self._born().distribution
        with contextlib.nullcontext() if made_under is None else made_under.scope():
            return make(*arguments)

    def __copy__(self) -> Any:
        return self.__deepcopy__({})

    def _check_one_process(self) -> None:
        if jax.process_count() > 1:
            raise ModelError(
                f"model {self.name!r} cannot be pickled or copied in a job of several processes",
                given=f"{jax.process_count()} processes, each of which holds a part of the weights",
                expected="one process",
                fix="model.save(path) in all of them, then kd.models.load_model(path)",
            )


def _made_again(custom_objects: Any, config: Any, compiled: Any, policy: str, state: Any) -> Any:
    before = dtype_policy()
    set_dtype_policy(policy)
    try:
        # not in safe mode: whoever unpickles runs what code it brings
        model = deserialize_keras_object(config, custom_objects, safe_mode=False)
        if compiled:
            model.compile_from_config(compiled)
    finally:
        set_dtype_policy(before)
    if state is not None:
        seed, fits, values = state
        session = model._born()
        session.use_seed(seed)
        session.fits = fits
        cell = session.cell
        places = zip(names_of(session), cell.arrays, jax.tree.leaves(cell.state_plan.shardings), strict=True)
        cell.arrays = [place_copy(_like(array, values[name]), sharding) for name, array, sharding in places]
    return model


def _like(array: Any, value: Any) -> Any:
    """What `host_copy` gave for such an array, typed PRNG keys as these."""
    if not _jax.is_key_dtype(array.dtype):
        return value
    return jax.random.wrap_key_data(value, impl=_jax.key_impl(array.dtype))
