# pyright: basic
"""`Lendable`: a variable whose array a training run borrows and returns.

Reading a variable marks its array, and the next training borrows a copy of a marked array: donation would delete it
under the reader. Flax's own variables cannot note who reads them, so that arrays of foreign modules count as read.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from keras_dist._support.array_operators import Operators
from keras_dist._support.stateless_scope import current_scope, reads_shapes
from keras_dist._unstable import flax_internals, jax_internals

switching = threading.RLock()
"""Guards borrowing and returning, so that no thread reads an array that a step is about to delete."""


class Changes:
    """Counter of changes of all variables; readers of many variables skip the check while it is unchanged."""

    last = 0
    _numbers = itertools.count(1)

    @classmethod
    def note(cls) -> None:
        """Record a change; thread-safe."""
        cls.last = next(cls._numbers)


class Borrower(Protocol):
    """An object that holds the current arrays of variables, such as a training state while it trains."""

    lock: Any = Operators._lock

    array_of: Callable[[Lendable], Any]  # returns the current array of a lent variable; the next step may delete it
    take: Callable[[Lendable, Any], None]  # replaces that array by an unshared one
    set_to_copy: Callable[[Lendable, Any], None]  # replaces that array by a copy of a value

    def copy_of(self, variable: Lendable) -> Any:
        """Return a copy of the current array of a lent variable."""
        ...

    def unshared(self, variable: Lendable) -> Any:
        """Return the current array of a lent variable; copy it first if a user may hold it."""
        return self.array_of(variable)

    def host_copy(self, array: Any) -> np.ndarray:
        """Return a copy on the host; every process of a job must call it."""
        return np.array(array)

    def layout_of(self, variable: Lendable) -> Any:
        """Return the layout of a variable; None for arrays that are on no mesh."""
        del variable


class Keeper(Borrower, Protocol):
    """The training state of a model. It borrows the arrays of the variables while it trains."""

    mesh: Any

    create: Callable[[], None]  # creates the arrays of all variables that have none
    copied: Callable[[Any], Any]  # returns a copy of an array with the same sharding
    checked: Callable[[Lendable, Any], Any]  # casts a value to the dtype of a variable; raises unless its shape fits
    drop: Callable[[Lendable], None]  # releases the array that a variable had before a write
    path_of: Callable[[Any], str | None]  # returns the path of a variable in the model


class Lendable(Operators, flax_internals.InterceptedVariable):
    """A variable that lends its array to a training run.

    Reading returns the array itself; the next borrower copies an array that was read. While the variable is lent,
    reading returns a copy of the current array, and writing replaces that array. A variable may be lent for good, as
    the slots of the optimizer of a model are.
    """

    __slots__ = ("_borrower", "_initial", "_is_own", "_keepers", "_mesh")

    create_alone: Callable[[], None]  # creates the array of a deferred variable, and no other

    def _read_raw(self) -> Any:
        self._have_array()
        with switching:
            borrower = self.borrower
            if borrower is None:
                object.__setattr__(self, "_is_own", False)
                return flax_internals.raw_value.__get__(self)
        return borrower.copy_of(self)

    def _write_raw(self, value: Any) -> None:
        keepers = () if jax_internals.is_traced(value) else self.keepers
        if keepers:
            value = keepers[0].checked(self, value)
        with switching:
            borrower = self.borrower
            if borrower is None:
                object.__setattr__(self, "_is_own", False)
                flax_internals.raw_value.__set__(self, value)
                Changes.note()
        if borrower is not None:
            borrower.set_to_copy(self, value)
        for keeper in keepers:
            keeper.drop(self)

    @property
    def initial(self) -> Any:
        """The initial value; None for variables that were made of an array."""
        return self._slot("_initial", None)

    def begin_with(self, initial: Any) -> None:
        """Set the initial value."""
        object.__setattr__(self, "_initial", initial)

    def begin_as(self, other: Lendable) -> None:
        """Begin with the value that another variable without an array begins with, whoever is in use first."""
        other.begin_with(other.initial.shared(is_planned=other._slot("_mesh", None) is not None))
        self.begin_with(other.initial)

    def keep_created(self, array: Any, initial: Any) -> bool:
        """Set the first array, and forget the initial value; return False if that is not `initial` any more."""
        with switching:
            if not (self.is_deferred and self.initial is initial):
                return False
            self.keep(array)
            self.begin_with(None)
            return True

    @property
    def is_deferred(self) -> bool:
        """Whether the array does not exist yet."""
        raw = flax_internals.raw_value.__get__(self)
        return type(raw) is jax.ShapeDtypeStruct and self.borrower is None and self.initial is not None

    def _have_array(self) -> None:
        is_shape = type(flax_internals.raw_value.__get__(self)) is jax.ShapeDtypeStruct
        if is_shape and self.is_deferred and not reads_shapes():
            for keeper in self.keepers[:1]:
                keeper.create()
            if self.is_deferred:  # it is in no model, or an initializer reads it while its model creates arrays
                self.create_alone()

    @property
    def borrower(self) -> Borrower | None:
        """The object that has the array; None while the variable has it."""
        return self._slot("_borrower", None)

    @property
    def is_own(self) -> bool:
        """Whether the array is unshared: set by `keep` and not read since."""
        return self._slot("_is_own", False)

    @property
    def keepers(self) -> list[Any]:
        """The training states that contain the variable, in the order of creation."""
        return [keeper for reference in self._slot("_keepers", ()) if (keeper := reference()) is not None]

    @property
    def mesh(self) -> Any:
        """The mesh of the last model that contains the variable, which may be deleted; None before there is one."""
        return self._slot("_mesh", None)

    @property
    def is_traced(self) -> bool:
        """Whether the value is a tracer, as in the copy of the variable that JAX makes in a trace."""
        return jax_internals.is_traced(flax_internals.raw_value.__get__(self))

    def _slot(self, name: str, default: Any) -> Any:
        try:
            return object.__getattribute__(self, name)  # getattr would look in the array
        except AttributeError:
            return default

    def peek(self) -> Any:
        """Return the current array for immediate use; the caller must not keep it."""
        borrower = self.borrower
        if borrower is not None:
            return borrower.array_of(self)
        self._have_array()
        return flax_internals.raw_value.__get__(self)

    @property
    def _shown(self) -> Any:
        # not `peek`: a step of another thread would delete the array while Python prints it
        return "deferred" if self.is_deferred else self._read_raw()

    def current(self) -> Any:
        """Return the array, or a copy while it is lent, which no step of the borrower deletes."""
        self._have_array()
        with switching:
            borrower = self.borrower
            if borrower is None:
                return flax_internals.raw_value.__get__(self)
        return borrower.copy_of(self)

    def keep(self, array: Any) -> None:
        """Set an unshared array."""
        object.__setattr__(self, "_is_own", True)
        flax_internals.raw_value.__set__(self, array)
        self._note_change()

    def lend_to(self, borrower: Borrower | None) -> None:
        """Lend the array to a borrower; None ends the loan."""
        object.__setattr__(self, "_borrower", borrower)
        self._note_change()

    def _note_change(self) -> None:
        if self._slot("_keepers", ()):  # readers of many variables are models
            Changes.note()

    def lend_for_good(self, keeper: Keeper) -> None:
        """Let a training state hold the array, until `lend_to(None)`."""
        object.__setattr__(self, "_mesh", keeper.mesh)
        self.lend_to(keeper)

    def join(self, keeper: Keeper) -> None:
        """Add a training state that contains the variable, or note that it has moved to another mesh."""
        object.__setattr__(self, "_keepers", tuple(map(weakref.ref, dict.fromkeys((*self.keepers, keeper)))))
        object.__setattr__(self, "_borrower", self.borrower)  # a set slot is read faster
        object.__setattr__(self, "_mesh", keeper.mesh)

    def leave(self, keeper: Keeper) -> None:
        """Remove a training state."""
        object.__setattr__(self, "_keepers", tuple(weakref.ref(one) for one in self.keepers if one is not keeper))

    def __deepcopy__(self, memo: dict[int, Any]) -> Lendable:
        """Return a variable that is in no model, with a copy of the value."""
        if id(self) not in memo:  # otherwise Flax returns a copy of the array
            is_deferred = self.is_deferred
            raw = flax_internals.raw_value.__get__(self)
            value = raw if is_deferred else jnp.array(self.current(), copy=True)
            memo[id(self)] = type(self).from_metadata(value, dict(self.get_metadata()))
            if is_deferred:
                memo[id(self)].begin_as(self)
        return memo[id(self)]

    # Required by `Operators`

    @property
    def _lock(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        keeper = self._keeper()
        return Operators._lock if keeper is None else keeper.lock

    def _keeper(self) -> Borrower | None:
        borrower = self._slot("_borrower", None)
        if borrower is not None:
            return borrower
        for reference in self._slot("_keepers", ()):  # not `keepers`: `get_weights` asks for each weight
            keeper = reference()
            if keeper is not None:
                return keeper
        return None

    def _array(self) -> Any:
        borrower = self.borrower
        if borrower is not None:
            return borrower.unshared(self)
        array, keepers = self.peek(), self.keepers
        if not self.is_own and not jax_internals.is_traced(array):  # readers keep the array that they have read
            self.keep(array := keepers[0].copied(array) if keepers else jnp.array(array, copy=True))
        return array

    def _store(self, array: Any) -> None:
        if self.borrower is None:
            self.keep(array)
        else:
            self.borrower.take(self, array)

    def numpy(self) -> np.ndarray:
        """Return the value on the host; in a job all processes must call this method of a model's variable."""
        keeper = self._keeper()
        if keeper is None or current_scope() is not None or jax_internals.is_traced(self.peek()):
            return super().numpy()
        with keeper.lock:  # borrowers wait for this lock
            array = self.peek()
            return np.array(array) if isinstance(array, np.ndarray) else keeper.host_copy(array)
