"""`ExpertsFamily`: what decoders with experts share. `transformers` writes an array for each expert, or one for all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

from keras_dist._support.arguments import is_int
from keras_dist.errors import shorten
from keras_dist.interop import Joined, Linear, Permute
from keras_dist.pretrained.config import NetworkConfig
from keras_dist.pretrained.families.decoder_family import DecoderFamily
from keras_dist.pretrained.family import Document

_LAYER, _EXPERTS = "model.layers.{}.mlp", "layers/{}/feed_forward/experts"

NUMBER = ("num_local_experts", "num_experts")
"""Names of one entry: `transformers` 5.24 writes the first, and earlier ones the second."""
DENSE = ("decoder_sparse_step", "mlp_only_layers")


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
        **dict.fromkeys(reversed(NUMBER), "experts.num_experts"),
    }
    defaults: ClassVar = {**DecoderFamily.defaults, "router_aux_loss_coef": 0.001, NUMBER[1]: None}
    harmless: ClassVar = ("output_router_logits",)
    transform: ClassVar = {**DecoderFamily.transform, ".*/(experts_(gate|up|down)|router)": Linear()}
    joined_names: ClassVar[Mapping[Any, Any]] = {
        (f"{_EXPERTS}_gate", f"{_EXPERTS}_up"): Joined(f"{_LAYER}.experts.gate_up_proj", axis=1),
        f"{_EXPERTS}_down": f"{_LAYER}.experts.down_proj",
        "layers/{}/feed_forward/router": f"{_LAYER}.gate.weight",
    }
    joined_transform: ClassVar = {**DecoderFamily.transform, ".*/experts_.*": Permute(0, 2, 1), ".*/router": Linear()}

    def read(self, document: Document) -> NetworkConfig:
        return super().read({key: value for key, value in document.items() if key not in NUMBER or value is not None})

    def tables(self, names_in_file: Collection[str]) -> tuple[Mapping[Any, Any], Mapping[str, Any]]:
        if not any(name.endswith(".experts.gate_up_proj") for name in names_in_file):
            return self.names, self.transform
        single = {rule: name for rule, name in self.names.items() if "experts" not in rule and "router" not in rule}
        return {**single, **self.joined_names}, self.joined_transform

    def _unsupported(self, document: Document) -> Iterator[str]:
        yield from super()._unsupported(document)
        first, second = (document.get(name) for name in NUMBER)
        if first is not None and second is not None and first != second:
            yield f"{NUMBER[0]}={shorten(first)} and {NUMBER[1]}={shorten(second)} must be equal"


def dense_layers(document: Document) -> tuple[int, ...]:
    """Return the layers without experts; none for entries that are not valid."""
    if [*wrong_dense_layers(document)]:
        return ()
    step, dense = document.get(DENSE[0], 1), document.get(DENSE[1]) or ()
    return tuple(layer for layer in range(document["num_hidden_layers"]) if (layer + 1) % step or layer in dense)


def wrong_dense_layers(document: Document) -> Iterator[str]:
    """Yield problems of the entries that name the layers without experts."""
    count, step, dense = (document.get(name) for name in ("num_hidden_layers", *DENSE))
    if DENSE[0] in document and not is_int(step, 1):
        yield f"{DENSE[0]}={shorten(step)} must be a positive integer"
    if not is_int(count, 1):
        return
    if dense is not None and not (isinstance(dense, list) and all(is_int(layer, 0, count - 1) for layer in dense)):
        yield f"{DENSE[1]}={shorten(dense)} must be a list of layers below num_hidden_layers={count}"
