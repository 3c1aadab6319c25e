"""Records tiny networks that others have quantized, for `test_quantized_folders.py`.

`python -m tests.pretrained.quantized_recordings` writes `tests/pretrained/recordings_of_others/quantized/<form>/`, in
an environment with torch, transformers 5, bitsandbytes and accelerate. The outputs are of `transformers` with weights
that bitsandbytes has dequantized, and for fp8 of `torch`. bitsandbytes 0.50 on CPUs dequantizes rows that its blocks
do not divide otherwise than on GPUs, so that rows are multiples of 64.
"""

import json
import pathlib

import torch
import transformers
from bitsandbytes import functional
from safetensors.torch import load_file, save_file

from tests.pretrained.networks import OF_OTHERS

FOLDER = OF_OTHERS / "quantized"
SIZES = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "initializer_range": 0.3}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def made(folder: pathlib.Path, intermediate_size: int) -> None:
    """Write a network with random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, intermediate_size=intermediate_size)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def finish(folder: pathlib.Path, weights: dict) -> None:
    """Write what a network with these weights computes."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    tokens = torch.randint(0, 64, (2, 12), dtype=torch.int32)
    with torch.no_grad():
        save_file({"input_ids": tokens, "outputs": model(tokens).logits}, folder / "outputs.safetensors")
    (folder / "generation_config.json").unlink(missing_ok=True)


def record_nf4(folder: pathlib.Path, twice: bool) -> None:
    """Record nf4 of bitsandbytes, with scales that are quantized themselves or not."""
    made(folder, 128)
    options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": twice}
    quantization = transformers.BitsAndBytesConfig(**options)
    model = transformers.LlamaForCausalLM.from_pretrained(folder, quantization_config=quantization, device_map="cpu")
    model.save_pretrained(folder)
    weights = dict(model.state_dict())
    for name, module in model.named_modules():
        if type(module).__name__ == "Linear4bit":
            value = functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            weights = {key: one for key, one in weights.items() if not key.startswith(f"{name}.weight")}
            weights[f"{name}.weight"] = value
    finish(folder, weights)


def record_fp8(folder: pathlib.Path) -> None:
    """Record fp8 with a scale for each 128 x 128 numbers, in the form of DeepSeek-V3."""
    made(folder, 160)
    weights, stored = load_file(folder / "model.safetensors"), {}
    for name, value in list(weights.items()):
        stored[name] = value
        if "_proj" in name:
            padded = torch.nn.functional.pad(value.float(), (0, -value.shape[1] % 128, 0, -value.shape[0] % 128))
            blocks = padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
            scale = blocks.abs().amax((1, 3)) / 448
            wide = scale.repeat_interleave(128, 0)[: len(value)].repeat_interleave(128, 1)[:, : value.shape[1]]
            stored[name] = (value.float() / wide).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale
            weights[name] = stored[name].float() * wide
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    options = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": options}, indent=2))
    finish(folder, weights)


if __name__ == "__main__":
    record_nf4(FOLDER / "nf4", twice=False)
    record_nf4(FOLDER / "nf4_twice", twice=True)
    record_fp8(FOLDER / "fp8")
