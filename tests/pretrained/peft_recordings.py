"""Records adapters of peft for `test_adapters_of_whole_modules.py` and `test_adapters_with_vectors.py`.

`python -m tests.pretrained.peft_recordings` writes `tests/pretrained/recordings_of_others/peft_whole/<name>/`, with
modules that are trained whole, and `peft_vectors/<name>/`, with `use_dora` or `lora_bias`, in an environment with
torch, transformers 5 and peft.
"""

import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import save_file

from tests.pretrained.networks import FOLDER, OF_OTHERS

TOKENS = torch.arange(24).reshape(2, 12) % 64
MODULES = {"b": ["embed_tokens", "norm"], "c": ["lm_head", "embed_tokens", "down_proj"]}
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
PATTERNS = {"rank_pattern": {"k_proj": 5, "up_proj": 1}, "alpha_pattern": {"v_proj": 7, "down_proj": 2}}
VECTORS = {
    "dora": ("llama", {"r": 3, "lora_alpha": 5, "use_rslora": True, "use_dora": True, "target_modules": LLAMA}),
    "dora_fused": ("gpt2", {"r": 3, "lora_alpha": 4, "use_dora": True, "target_modules": ["c_attn", "mlp.c_fc"]}),
    "lora_bias": ("llama", {"r": 2, "lora_alpha": 3, "lora_bias": True, "target_modules": LLAMA}),
}
RATE = 0.1


def main() -> None:
    """Record all adapters."""
    torch.manual_seed(3)
    for name, modules in MODULES.items():
        options = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "modules_to_save": modules}
        model = adapted("llama", options)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(0, 0.2)
        written(model, OF_OTHERS / "peft_whole" / name, "llama")
    for name, (family, options) in VECTORS.items():
        options = options if family == "gpt2" else {**options, **PATTERNS}
        model = adapted(family, options)
        for path, parameter in model.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn_like(parameter) * 0.2
                parameter.data += parameter.data * noise if "magnitude" in path else noise
        folder = OF_OTHERS / "peft_vectors" / name
        written(model, folder, family)
        values = {path: value.clone() for path, value in model.state_dict().items()}
        optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], RATE)
        (model(TOKENS).logits ** 2).mean().backward()
        optimizer.step()
        save_file(peft.get_peft_model_state_dict(model), folder / "stepped.safetensors")
        model.load_state_dict(values)
        merged = model.merge_and_unload().state_dict()
        targets = tuple(f"{one}.{end}" for one in options["target_modules"] for end in ("weight", "bias"))
        save_file(
            {path: value for path, value in merged.items() if path.endswith(targets)}, folder / "merged.safetensors"
        )


def adapted(family: str, options: dict) -> peft.PeftModel:
    """Return a recorded network with an adapter."""
    base = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / family, dtype=torch.float32)
    return peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()


def written(model: peft.PeftModel, folder: pathlib.Path, family: str) -> None:
    """Write the files of an adapter, and the logits."""
    model.save_pretrained(folder)
    with torch.no_grad():
        save_file({"outputs": model(TOKENS).logits}, folder / "outputs.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": family}, indent=2))
    (folder / "README.md").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
