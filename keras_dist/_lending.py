"""`Lendable`: a variable whose array a training borrows, and gives back."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any, Protocol

import numpy as np
from flax import nnx

from keras_dist import _jax
from keras_dist._operators import Operators
from keras_dist._scope import current_scope

switching = threading.RLock()
"""Held for a moment while an array changes hands, so that nobody reads one that is about to be deleted."""


class Changes:
    """Numbers the changes of all variables, so that who looks at many need not look again while there are none."""

    last = 0
    _numbers = itertools.count(1)

    @classmethod
    def note(cls) -> None:
        """Note a change that has been made; in any thread."""
        cls.last = next(cls._numbers)


class Keeper(Protocol):
    """The training state of a model, which knows where variables live, and has their arrays while it trains."""

    lock: Any

    def array_of(self, variable: Lendable) -> Any:
        """The current array of a variable that is lent; the next step may delete it."""
        ...

    def copy_of(self, variable: Lendable) -> Any:
        """A copy of it."""
        ...

    def copied(self, array: Any) -> Any:
        """A copy of an array, in the same place."""
        ...

    def host_copy(self, array: Any) -> np.ndarray:
        """A copy on the host; in a job of several processes all must call."""
        ...

    def take(self, variable: Lendable, array: Any) -> None:
        """Put an array that nobody else holds in the place of the current one."""
        ...

    def set_to_copy(self, variable: Lendable, value: Any) -> None:
        """Put a copy of a value in the place of the current array."""
        ...

    def checked(self, variable: Lendable, value: Any) -> Any:
        """A value in the element type of a variable, if it has its shape."""
        ...

    def drop(self, variable: Lendable) -> None:
        """Let the array go that a variable had before it was written."""
        ...

    def path_of(self, variable: Any) -> str | None:
        """The path of a variable in the model."""
        ...


class Lendable(Operators, nnx.Variable):
    """A variable that lends its array.

    Whoever reads it gets the array itself, and the next borrower takes a copy of that. While it is lent, reading gives
    a copy of the current array, and writing sets that.
    """

    __slots__ = ("_borrower", "_is_own", "_keepers")

    is_key = False
    """Whether it is the state of a random generator."""

    @property
    def _raw_value(self) -> Any:
        with switching:
            borrower = self.borrower
            if borrower is None:
                object.__setattr__(self, "_is_own", False)
                return _jax.raw_value.__get__(self)
        return borrower.copy_of(self)

    @_raw_value.setter
    def _raw_value(self, value: Any) -> None:
        keepers = () if _jax.is_traced(value) else self.keepers
        if keepers:
            value = keepers[0].checked(self, value)
        with switching:
            borrower = self.borrower
            if borrower is None:
                object.__setattr__(self, "_is_own", False)
                _jax.raw_value.__set__(self, value)
                Changes.note()
        if borrower is not None:
            borrower.set_to_copy(self, value)
        for keeper in keepers:
            keeper.drop(self)

    @property
    def borrower(self) -> Keeper | None:
        """What has its array now; None for itself."""
        return self._slot("_borrower", None)

    @property
    def is_own(self) -> bool:
        """Whether nobody else holds the array: it was put here by `keep`, and nobody has read it since."""
        return self._slot("_is_own", False)

    @property
    def keepers(self) -> list[Any]:
        """The training states of models that it is a part of, the first one first."""
        return [keeper for reference in self._slot("_keepers", ()) if (keeper := reference()) is not None]

    def _slot(self, name: str, default: Any) -> Any:
        try:
            return object.__getattribute__(self, name)  # getattr would look for it in the array
        except AttributeError:
            return default

    def peek(self) -> Any:
        """Return the current array, which the caller does not hand on."""
        borrower = self.borrower
        return _jax.raw_value.__get__(self) if borrower is None else borrower.array_of(self)

    def current(self) -> Any:
        """Return the array itself, or where it is lent a copy, which no step of the borrower deletes."""
        with switching:
            borrower = self.borrower
            if borrower is None:
                return _jax.raw_value.__get__(self)
        return borrower.copy_of(self)

    def keep(self, array: Any) -> None:
        """Have an array that nobody else holds."""
        object.__setattr__(self, "_is_own", True)
        _jax.raw_value.__set__(self, array)
        Changes.note()

    def lend_to(self, borrower: Keeper | None) -> None:
        """Let a borrower have the array from now on; None ends that, after which `keep` follows."""
        object.__setattr__(self, "_borrower", borrower)
        Changes.note()

    def join(self, keeper: Keeper) -> None:
        """Be a part of the training state of a model from now on."""
        object.__setattr__(self, "_keepers", tuple(map(weakref.ref, dict.fromkeys((*self.keepers, keeper)))))
        object.__setattr__(self, "_borrower", self.borrower)  # a slot that is set is read faster

    def leave(self, keeper: Keeper) -> None:
        """Be no part of it any more."""
        object.__setattr__(self, "_keepers", tuple(weakref.ref(one) for one in self.keepers if one is not keeper))

    # As `Operators` asks for it

    @property
    def _lock(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return next((keeper.lock for keeper in (self.borrower, *self.keepers) if keeper is not None), Operators._lock)

    @property
    def _is_private(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(self._slot("_keepers", ()))

    def _array(self) -> Any:
        array, keepers = self.peek(), self.keepers
        if keepers and self.borrower is None and not self.is_own and not _jax.is_traced(array):
            self.keep(array := keepers[0].copied(array))  # what others have read stays as it is
        return array

    def _store(self, array: Any) -> None:
        if self.borrower is not None:
            self.borrower.take(self, array)
        elif self.keepers:
            self.keep(array)
        else:
            self._write(array)

    def numpy(self) -> np.ndarray:
        """Return the value on the host. Of a model in a job of several processes all must call it."""
        keepers = self.keepers
        if not keepers or current_scope() is not None or _jax.is_traced(self.peek()):
            return super().numpy()
        with self._lock:  # for which who borrows it from now on waits
            array = self.peek()
            return np.array(array) if isinstance(array, np.ndarray) else keepers[0].host_copy(array)
