"""`RecurrentLayer`: the base of `SimpleRNN`, `GRU` and `LSTM`."""

from __future__ import annotations

import operator

from keras_dist.layers.rnn import RNN


def of_cell(name: str) -> property:
    """The attribute `name` of the cell, as one of the layer."""
    return property(operator.attrgetter(f"cell.{name}"), doc=f"`{name}` of the cell.")


class RecurrentLayer(RNN):
    """An `RNN` that makes its cell itself: what the cell was told are attributes of the layer, too."""

    units = of_cell("units")
    activation = of_cell("activation")
    use_bias = of_cell("use_bias")
    kernel_initializer = of_cell("kernel_initializer")
    recurrent_initializer = of_cell("recurrent_kernel_initializer")
    bias_initializer = of_cell("bias_initializer")
    kernel_regularizer = of_cell("kernel_regularizer")
    recurrent_regularizer = of_cell("recurrent_kernel_regularizer")
    bias_regularizer = of_cell("bias_regularizer")
    kernel_constraint = of_cell("kernel_constraint")
    recurrent_constraint = of_cell("recurrent_kernel_constraint")
    bias_constraint = of_cell("bias_constraint")
    dropout = of_cell("dropout")
    recurrent_dropout = of_cell("recurrent_dropout")
