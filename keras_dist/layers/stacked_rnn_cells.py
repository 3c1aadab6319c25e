"""`StackedRNNCells`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_dist.errors import ModelError, shorten
from keras_dist.layers.layer import Layer
from keras_dist.layers.recurrent_cell import check_cell, first_states, output_size


class StackedRNNCells(Layer):
    """Several cells as one: each gets the output of the one before.

    Weights are found under the names of the cells; where two have one name, the later are numbered: `lstm_cell/kernel`,
    `lstm_cell_1/kernel`.

    Args:
        cells: the cells, as `RNN` takes them.
        **kwargs: as of `Layer`.

    Raises:
        ModelError: one is no cell.

    Source: `keras.layers.StackedRNNCells`.
    """

    def __init__(self, cells: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(cells, list | tuple) or not cells:
            raise ModelError(
                f"`cells` of layer {self.name!r} is no list of cells",
                given=f"cells={shorten(cells)}",
                expected="a list of at least one cell",
                fix="for example StackedRNNCells([LSTMCell(32), LSTMCell(16)])",
            )
        members: dict[str, Layer] = {}
        for cell in cells:
            name, count = check_cell(cell, self.name).name, 0
            while name in members:
                count += 1
                name = f"{cell.name}_{count}"
            members[name] = cell
        self._members = members
        self._names = tuple(members)

    @property
    def cells(self) -> list[Any]:
        """The cells."""
        return [self._members[name] for name in self._names]

    @property
    def state_size(self) -> list[Any]:
        """For each cell the size of its state, or the sizes of its states."""
        return [cell.state_size for cell in self.cells]

    @property
    def output_size(self) -> int:
        """Size of the output of the last cell."""
        return output_size(self.cells[-1])

    def get_initial_state(self, batch_size: int) -> list[Any]:
        """What each cell begins with."""
        return [first_states(cell, batch_size) for cell in self.cells]

    def draw_noise(self, input_shape: tuple[int, ...]) -> list[Any]:
        """What one call in training gives each cell as `noise`; None for cells that draw none."""
        drawn: list[Any] = []
        for cell in self.cells:
            drawn.append(cell.draw_noise(input_shape) if hasattr(cell, "draw_noise") else None)
            input_shape = (input_shape[0], output_size(cell))
        return drawn

    def call(self, inputs: Any, states: Any, training: bool | None = False, noise: Any = None) -> tuple[Any, list[Any]]:
        """The output of the last cell, and the new states of all."""
        found: list[Any] = []
        for cell, own, drawn in zip(self.cells, states, noise or [None] * len(self.cells), strict=True):
            options = {} if drawn is None else {"noise": drawn}
            inputs, new = cell(inputs, own if isinstance(own, list | tuple) else [own], training=training, **options)
            found.append(new)
        return inputs, found
