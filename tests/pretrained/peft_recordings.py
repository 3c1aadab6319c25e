"""Records adapters of peft with modules that are trained whole, for `test_adapters_of_whole_modules.py`.

`python -m tests.pretrained.peft_recordings` writes `tests/pretrained/recordings_of_others/peft_whole/<name>/`, in an
environment with torch, transformers 5 and peft.
"""

import json

import peft
import torch
import transformers
from safetensors.torch import save_file

from tests.pretrained.networks import FOLDER, OF_OTHERS

MODULES = {"b": ["embed_tokens", "norm"], "c": ["lm_head", "embed_tokens", "down_proj"]}


def main() -> None:
    """Record all adapters."""
    torch.manual_seed(3)
    for name, modules in MODULES.items():
        base = transformers.LlamaForCausalLM.from_pretrained(FOLDER / "llama", dtype=torch.float32)
        targets = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": modules, "task_type": "CAUSAL_LM"}
        model = peft.get_peft_model(base, peft.LoraConfig(r=2, lora_alpha=4, **targets))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(0, 0.2)
        folder = OF_OTHERS / "peft_whole" / name
        model.save_pretrained(folder)
        with torch.no_grad():
            outputs = model(torch.arange(24).reshape(2, 12) % 64).logits
        save_file({"outputs": outputs}, folder / "outputs.safetensors")
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(
            json.dumps({**config, "base_model_name_or_path": "llama"}, indent=2)
        )
        (folder / "README.md").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
