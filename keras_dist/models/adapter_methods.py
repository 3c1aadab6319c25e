"""`AdapterMethods`: LoRA for a whole model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from keras_dist._support.located_warnings import warn
from keras_dist.formats.weight_map import WeightMap
from keras_dist.models.adapter_saving import load, save
from keras_dist.models.adapters import enable, merge
from keras_dist.models.saving_methods import SavingMethods
from keras_dist.training.built_model import BuiltModel
from keras_dist.training.compile_config import CompileConfig


class AdapterMethods(SavingMethods):
    """The methods of `Model` for adapters."""

    _merged_after: CompileConfig | None = None
    """The `compile` whose optimizer had taken steps at `merge_lora`, until training begins again."""

    def enable_lora(
        self,
        rank: int,
        layers: str | Iterable[str],
        *,
        alpha: float | None = None,
        dropout: float = 0.0,
        rank_pattern: Mapping[str, int] | None = None,
        alpha_pattern: Mapping[str, float] | None = None,
    ) -> None:
        r"""Freeze all weights, and train low-rank updates of the weights of some layers.

        A layer computes `inputs @ kernel + alpha / rank * dropout(inputs) @ A @ B`. The factors A (inputs, rank) and B
        (rank, outputs) are float32, sharded as the dims of the kernel, and become weights of the model; a kernel with
        several dims of inputs or outputs has them in A or B. A stack of kernels has a stack of factors. B is zero at
        first. Experts have factors each. The optimizer has slots for the factors alone; a compiled model has it
        reset, with a warning if it has taken steps.

        In models of `from_nnx` each call adds the update to the kernels: the backward pass computes gradients of
        whole kernels. The factors are below `lora`. Before `merge_lora`, `model.module` computes without the update.

        Args:
            rank: the rank of the updates.
            layers: regular expression, or several, for whole paths of `Dense`, `EinsumDense`, `Embedding`,
                `MixtureOfExperts` and convolutions, or of their weights. In models of `from_nnx` for paths of
                parameters, or of modules with a `kernel` or `embedding`.
            alpha: scaling factor; the updates are multiplied by `alpha / rank`. By default the rank of each layer.
            dropout: fraction of the inputs of the factors to drop in training; not for embeddings, and not available
                for experts and in models of `from_nnx`.
            rank_pattern: other ranks, by regular expressions for paths as in `layers`; the first that matches counts.
            alpha_pattern: other scaling factors.

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
        enable(self, rank, layers, alpha, dropout, rank_pattern, alpha_pattern)

    def merge_lora(self) -> None:
        """Add the updates of LoRA to their weights, on the devices, and remove the factors.

        The sums have the dtype of the weights. The model computes the same, and trains the weights that it trained
        before `enable_lora`. The optimizer of a compiled model is reset; `fit` warns if it had taken steps. Updates of
        layers on which `enable_lora` was called are merged, too.

        Raises:
            ModelError: the model has no adapters, or is being trained.
        """
        merge(self)

    def save_adapter(
        self,
        filepath: str | os.PathLike[str],
        overwrite: bool = True,
        *,
        weight_map: WeightMap | None = None,
        base_model_name_or_path: str | None = None,
        task_type: str | None = None,
    ) -> None:
        """Save the factors of LoRA alone in a folder, in the format of `peft`.

        The files are `adapter_config.json` and `adapter_model.safetensors`. Modules have their names in the base
        model's files, for networks of `kd.pretrained`, or where `weight_map` gives them. Otherwise they have our paths
        with dots, and numbers for the layers of a stack. In a job all processes must call; the first writes.

        peft adapts a module as a whole. Of weights that are parts of one module, such as `qkv_proj`, the file has one
        factor A for all, of the sum of their ranks, and B consists of blocks. `load_adapter` finds the parts again.
        Weights of experts are `target_parameters`, which `transformers` 5 has for pretrained networks.

        Args:
            filepath: a folder, which is created in a folder that exists.
            overwrite: whether existing files are replaced.
            weight_map: names of weights in the base's files, as in `load_weights`.
            base_model_name_or_path: where peft finds the base.
            task_type: of peft, such as `"CAUSAL_LM"`.

        Raises:
            ModelError: the model has no adapters of `Model.enable_lora`, files exist and are not to be replaced, or the
                format cannot hold the adapters, for example of embeddings that are the head, or of parts of one module
                with different `alpha / rank`.
            OSError: a file cannot be written.

        Example:
            >>> import pathlib, tempfile
            >>> import keras_dist as kd
            >>> model = kd.Sequential([kd.Input((8,)), kd.layers.Dense(16, name="up")])
            >>> model.enable_lora(rank=2, layers="up")
            >>> folder = pathlib.Path(tempfile.mkdtemp()) / "adapter"
            >>> model.save_adapter(folder)
            >>> sorted(path.name for path in folder.iterdir())
            ['adapter_config.json', 'adapter_model.safetensors']

        Source: `peft.PeftModel.save_pretrained`.
        """
        others = {"base_model_name_or_path": base_model_name_or_path, "task_type": task_type}
        save(self, filepath, overwrite, weight_map, **others)

    def load_adapter(
        self, filepath: str | os.PathLike[str], *, weight_map: WeightMap | None = None, dropout: float | None = None
    ) -> None:
        """Load factors that `save_adapter` or `peft` wrote. A model without adapters gets them.

        Weights that are parts of one module each get its factor A, and their rows of B. Our blocks are found by the
        zeros of B: where all of B is zero, as in a model that was saved untrained, the factors get the sum of the
        ranks, unless `enable_lora` gives the ranks first. A copy of the base's embeddings, which peft adds to the
        factors of embeddings, is not loaded.

        Args:
            filepath: the folder.
            weight_map: names of weights in the base's files; see `save_adapter`.
            dropout: instead of the fraction in the files, if the model has no adapters.

        Raises:
            ModelError: the files cannot be read, have unsupported options such as DoRA, or do not fit the model; all
                problems are listed, and the model stays as it is.
            FileNotFoundError: a file does not exist.

        Source: `peft.PeftModel.from_pretrained`.
        """
        load(self, filepath, weight_map, dropout)

    def _ready_to_train(self, method: str, x: Any) -> BuiltModel:
        session, before = super()._ready_to_train(method, x), self._merged_after
        if before is not None and before is self._compile_config and not any(self._steps_taken(session)):
            way = "`optimizer.iterations.assign(steps)` before it continues a schedule of its learning rate"
            warn(f"{method}: the optimizer starts again without its state, since merge_lora; {way}")
        self._merged_after = None
        return session

    def _steps_taken(self, session: BuiltModel) -> list[int]:
        return [int(getattr(one, "iterations", session.cell.state.step)) for one in self.optimizers.values()]

    def _map_of_base(self) -> WeightMap | None:
        """Return the names of weights in files of the base; None for our own."""
        return None
