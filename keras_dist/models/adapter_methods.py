"""`AdapterMethods`: LoRA for a whole model."""

from __future__ import annotations

from collections.abc import Iterable

from keras_dist.models.adapters import enable, merge
from keras_dist.models.saving_methods import SavingMethods


class AdapterMethods(SavingMethods):
    """The methods of `Model` for adapters."""

    def enable_lora(
        self, rank: int, layers: str | Iterable[str], *, alpha: float | None = None, dropout: float = 0.0
    ) -> None:
        r"""Freeze all weights, and train low-rank updates of the weights of some layers.

        A layer computes `inputs @ kernel + alpha / rank * dropout(inputs) @ A @ B`. The factors A (inputs, rank) and B
        (rank, outputs) are float32, sharded as the dims of the kernel, and become weights of the model; a kernel with
        several dims of inputs or outputs has them in A or B. A stack of kernels has a stack of factors. B is zero at
        first. The optimizer has slots for the factors alone; that of a compiled model is reset.

        In models of `from_nnx` each call adds the update to the kernels. The factors are below `lora`. `model.module`
        has the kernels without the update before `merge_lora`.

        Args:
            rank: the rank of the updates.
            layers: regular expression, or several, for whole paths of `Dense`, `EinsumDense`, `Embedding` and
                convolutions, or of their weights. In models of `from_nnx` for paths of parameters, or of modules with
                a `kernel` or `embedding`.
            alpha: scaling factor; the updates are multiplied by `alpha / rank`. By default `rank`.
            dropout: fraction of the inputs of the factors to drop in training; not for embeddings, and not available in
                models of `from_nnx`.

        Raises:
            ModelError: an argument cannot be used; a pattern matches nothing, or layers that cannot be adapted, all of
                which are listed; the model has adapters, shares weights with another model, or is being trained. The
                model stays as it is.
            LayoutError: layout rules cannot be applied to the factors. The model stays as it is.

        Example:
            >>> import keras_dist as kd
            >>> from keras_dist import layers
            >>> model = kd.Sequential([kd.Input((8,)), layers.Dense(16, name="up"), layers.Dense(8, name="down")])
            >>> model.enable_lora(rank=2, layers="up|down", alpha=4)
            >>> [weight.path for weight in model.trainable_weights]
            ['up/lora_kernel_a', 'up/lora_kernel_b', 'down/lora_kernel_a', 'down/lora_kernel_b']

        Source: Hu et al. 2021, arXiv:2106.09685; `peft.LoraConfig`.
        """
        enable(self, rank, layers, alpha, dropout)

    def merge_lora(self) -> None:
        """Add the updates of LoRA to their weights, on the devices, and remove the factors.

        The model computes the same, and trains the weights that it trained before `enable_lora`. The optimizer of a
        compiled model is reset. Updates of layers on which `enable_lora` was called are merged, too.

        Raises:
            ModelError: the model has no adapters, or is being trained.
        """
        merge(self)
