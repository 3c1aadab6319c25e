"""`Lendable`: a variable whose array a training borrows, and gives back."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from flax import nnx

from keras_dist import _jax


class Borrower(Protocol):
    """What has the arrays of variables while it trains, and donates them to each step."""

    lock: Any

    def array_of(self, variable: Lendable) -> Any:
        """The current array, which the next step may delete."""
        ...

    def copy_of(self, variable: Lendable) -> Any:
        """A copy of the current array."""
        ...

    def put(self, arrays: Mapping[int, Any]) -> None:
        """Put arrays in the places of some of the current ones, by their index."""
        ...

    def place_of(self, variable: Any) -> int:
        """The index of the array of a variable."""
        ...

    def set_to_copy(self, variable: Lendable, value: Any) -> None:
        """Put a copy of a value in the place of the current array."""
        ...


class Lendable(nnx.Variable):
    """A variable that lends its array.

    Whoever reads it gets the array itself, and the next borrower takes a copy of that. While it is lent, reading gives
    a copy of the current array, and writing sets that.
    """

    __slots__ = ("_borrower", "_cells", "_is_own")

    @property
    def _raw_value(self) -> Any:
        borrower = self.borrower
        if borrower is not None:
            return borrower.copy_of(self)
        object.__setattr__(self, "_is_own", False)
        return _jax.raw_value.__get__(self)

    @_raw_value.setter
    def _raw_value(self, value: Any) -> None:
        borrower = self.borrower
        if borrower is not None:
            borrower.set_to_copy(self, value)
            return
        object.__setattr__(self, "_is_own", False)
        _jax.raw_value.__set__(self, value)

    @property
    def borrower(self) -> Borrower | None:
        """What has its array now; None for itself."""
        try:
            return object.__getattribute__(self, "_borrower")  # getattr would look for it in the array
        except AttributeError:
            return None

    @property
    def is_own(self) -> bool:
        """Whether nobody else holds the array: it was put here by `keep`, and nobody has read it since."""
        try:
            return object.__getattribute__(self, "_is_own")
        except AttributeError:
            return False

    def peek(self) -> Any:
        """Return the current array, which the caller does not hand on."""
        borrower = self.borrower
        return _jax.raw_value.__get__(self) if borrower is None else borrower.array_of(self)

    def keep(self, array: Any) -> None:
        """Have an array that nobody else holds."""
        object.__setattr__(self, "_is_own", True)
        _jax.raw_value.__set__(self, array)

    def lend_to(self, borrower: Borrower | None) -> None:
        """Let a borrower have the array from now on; None ends that, after which `keep` follows."""
        object.__setattr__(self, "_borrower", borrower)

    @property
    def cells(self) -> list[Any]:
        """The training states of models that it is a part of, the first one first."""
        try:
            references = object.__getattribute__(self, "_cells")
        except AttributeError:
            return []
        return [cell for reference in references if (cell := reference()) is not None]

    def join(self, cell: Any) -> None:
        """Be a part of the training state of a model from now on."""
        object.__setattr__(self, "_cells", tuple(map(weakref.ref, dict.fromkeys((*self.cells, cell)))))

    def leave(self, cell: Any) -> None:
        """Be no part of it any more."""
        object.__setattr__(self, "_cells", tuple(weakref.ref(one) for one in self.cells if one is not cell))
