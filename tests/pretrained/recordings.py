"""Records tiny networks of `transformers`: config, weights, inputs and outputs, for `test_families.py`.

`python -m tests.pretrained.recordings` writes `tests/pretrained/recordings/<family>/`, in an environment with torch,
transformers 5 and safetensors; with names of families it writes these alone. The options are chosen so that each has an
effect in sequences of 12 tokens.

`... --check FOLDER` loads networks that keras_dist has saved in `FOLDER/<family>`, and compares outputs. Tests
leave them there if `KEEP_SAVED=FOLDER` is set.
"""

import pathlib
import sys
import warnings

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.pretrained.networks import FOLDER, NETWORKS, SHORT, SIZES


def recorded(family: str, folder: pathlib.Path) -> None:
    """Write a network with random weights, and what it computes."""
    name, options = NETWORKS[family]
    taken = {} if family == "gpt2" else SIZES
    taken = {key: value for key, value in taken.items() if family != "vit" or key != "vocab_size"}
    special = {} if family == "vit" else SHORT
    kind = getattr(transformers, name)
    config = kind.config_class(**{"initializer_range": 0.3, **taken, **special, **options})
    torch.manual_seed(0)
    model = kind(config)
    for path, parameter in model.named_parameters():
        if parameter.ndim == 1:  # norms and biases, which are ones and zeros
            start = 1.0 if "norm" in path.lower() and "weight" in path and "gemma" not in family else 0.0
            parameter.data.normal_(start, 0.3)
    model.to(torch.bfloat16).save_pretrained(folder)  # half as large
    experts = {"experts_implementation": "eager"} if "gpt_oss" in family else {}  # others need sizes of 16 bytes
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **experts).eval()
    inputs = inputs_of(family)
    save_file(inputs | {"outputs": outputs_of(model, inputs)}, folder / "outputs.safetensors")


def inputs_of(family: str) -> dict:
    """Return inputs: tokens, and for BERT types and a mask of padding; images for ViT."""
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    tokens = torch.randint(0, 64, (2, 12), dtype=torch.int32)
    if "modernbert" in family:
        mask = torch.ones(2, 12, dtype=torch.int64)
        mask[1, 9:] = 0
        return {"input_ids": tokens, "attention_mask": mask}
    if family != "bert":
        return {"input_ids": tokens}
    types, mask = torch.zeros(2, 12, dtype=torch.int64), torch.ones(2, 12, dtype=torch.int64)
    types[:, 6:], mask[1, 9:] = 1, 0
    return {"input_ids": tokens, "token_type_ids": types, "attention_mask": mask}


def outputs_of(model, inputs: dict):
    """Return the logits of a decoder, or the hidden vectors of an encoder."""
    with torch.no_grad():
        found = model(**inputs)
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


def checked(family: str, folder: pathlib.Path) -> str:
    """Load a network that keras_dist has saved, and compare what it computes."""
    name, _ = NETWORKS[family]
    kind = getattr(transformers, name)
    model, found = kind.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    values = load_file(FOLDER / family / "outputs.safetensors")
    expected = values.pop("outputs")
    difference = (outputs_of(model.eval(), values) - expected).abs().max().item()
    wrong = {key: list(value) for key, value in found.items() if value}
    return f"{family:12} {name:22} difference {difference:.1e} {wrong or 'loaded whole'}"


def main() -> None:
    """Record all families, or check those that keras_dist has saved."""
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["--check"]:
        for family in NETWORKS:
            print(checked(family, pathlib.Path(sys.argv[2]) / family))
        return
    for family in sys.argv[1:] or NETWORKS:
        folder = FOLDER / family
        recorded(family, folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        print(family, sum(path.stat().st_size for path in folder.iterdir()))


if __name__ == "__main__":
    main()
