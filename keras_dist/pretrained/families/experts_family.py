"""`ExpertsFamily`: what decoders with experts share. `transformers` writes an array for each expert, or one for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from keras_dist.interop import Joined, Linear, Permute
from keras_dist.pretrained.families.decoder_family import DecoderFamily

_LAYER, _EXPERTS = "model.layers.{}.mlp", "layers/{}/feed_forward/experts"


class ExpertsFamily(DecoderFamily):
    """A decoder with experts.

    Attributes:
        joined_names: names of files with one array for all experts, `save_pretrained(save_original_format=False)`.
        joined_transform: changes of form of these.
    """

    keys: ClassVar = {
        **DecoderFamily.keys,
        "num_experts_per_tok": "experts.top_k",
        "router_aux_loss_coef": "experts.load_balancing",
    }
    defaults: ClassVar = {**DecoderFamily.defaults, "router_aux_loss_coef": 0.001}
    harmless: ClassVar = ("output_router_logits",)
    transform: ClassVar = {**DecoderFamily.transform, ".*/(experts_(gate|up|down)|router)": Linear()}
    joined_names: ClassVar[Mapping[Any, Any]] = {
        (f"{_EXPERTS}_gate", f"{_EXPERTS}_up"): Joined(f"{_LAYER}.experts.gate_up_proj", axis=1),
        f"{_EXPERTS}_down": f"{_LAYER}.experts.down_proj",
        "layers/{}/feed_forward/router": f"{_LAYER}.gate.weight",
    }
    joined_transform: ClassVar[Mapping[str, Any]] = {
        **DecoderFamily.transform,
        ".*/experts_(gate|up|down)": Permute(0, 2, 1),
        ".*/router": Linear(),
    }

    def tables(self, names_in_file: Collection[str]) -> tuple[Mapping[Any, Any], Mapping[str, Any]]:
        if not any(name.endswith(".experts.gate_up_proj") for name in names_in_file):
            return self.names, self.transform
        single = {rule: name for rule, name in self.names.items() if "experts" not in rule and "router" not in rule}
        return {**single, **self.joined_names}, self.joined_transform
