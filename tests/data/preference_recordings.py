"""What TRL makes of preferences: `python -m tests.data.preference_recordings` records it anew.

It needs trl, transformers, torch and datasets, which the tests do not. The networks are Llamas without blocks: logits
after a token are `network(seed)[token]`.
"""

import importlib
import json
import pathlib
import tempfile
from typing import Any

import numpy as np

from tests.data import chat_recordings

FILE = pathlib.Path(__file__).parent / "recordings" / "preferences.json"
SIZE, FEATURES, BETA = 384, 8, 0.3
REFERENCE, POLICY = 0, 1  # seeds
USER = {"role": "user", "content": "What is 2 + 2?"}
GOOD, BAD = {"role": "assistant", "content": "It is 4."}, {"role": "assistant", "content": "Fünf, maybe five!"}
MORE = [{"role": "user", "content": "And 3 + 3?"}, {"role": "assistant", "content": "6"}]
PAIRS: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [USER, GOOD, MORE[0]], "chosen": [MORE[1]], "rejected": [BAD]},
    ],
    "conversations": [
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": [USER, GOOD, *MORE], "rejected": [USER, GOOD, MORE[0], BAD]},
    ],
    "texts": [
        {"prompt": "Two and two is", "chosen": " four.", "rejected": " five, I think."},
        {"prompt": "1, 2,", "chosen": " 3</s>", "rejected": " 5"},
    ],
}


def weights(seed: int) -> dict[str, np.ndarray]:
    """The weights of a network."""
    random = np.random.RandomState(seed)
    shape, names = (SIZE, FEATURES), ("model.embed_tokens.weight", "lm_head.weight")
    found = {name: random.normal(size=shape).astype("f4") for name in names}
    return {**found, "model.norm.weight": np.ones(FEATURES, "f4")}


def network(seed: int) -> np.ndarray:
    """The logits after each token (SIZE, SIZE), float64."""
    embeddings, head, _ = (weight.astype("f8") for weight in weights(seed).values())
    return embeddings / np.sqrt((embeddings**2).mean(-1, keepdims=True) + 1e-6) @ head.T


def recorded(pairs: list[dict[str, Any]], tokenizer: Any) -> dict[str, Any]:
    """Tokens of TRL, and its loss and metrics over all pairs."""
    names = "datasets", "torch", "transformers", "trl"
    datasets, torch, transformers, trl = map(importlib.import_module, names)

    def llama(seed: int) -> Any:
        sizes = {"hidden_size": FEATURES, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 8}
        config = transformers.LlamaConfig(vocab_size=SIZE, num_hidden_layers=0, rms_norm_eps=1e-6, **sizes)
        model = transformers.LlamaForCausalLM(config)
        model.load_state_dict({name: torch.tensor(value) for name, value in weights(seed).items()}, strict=True)
        return model

    with tempfile.TemporaryDirectory() as folder:
        options = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_dropout": True, "beta": BETA}
        options |= {"per_device_eval_batch_size": len(pairs), "eval_strategy": "no", "gradient_checkpointing": False}
        data = datasets.Dataset.from_list(pairs)
        trainer = trl.DPOTrainer(
            llama(POLICY),
            llama(REFERENCE),
            args=trl.DPOConfig(folder, **options),
            train_dataset=data,
            eval_dataset=data,
            processing_class=tokenizer,
        )
        found = trainer.evaluate()
        rows = list(trainer.eval_dataset)
    ids = [{name: row[f"{name}_ids"] for name in ("prompt", "chosen", "rejected")} for row in rows]
    keys = {"loss": "eval_loss", "reward_accuracy": "eval_rewards/accuracies", "reward_margin": "eval_rewards/margins"}
    return {"pairs": pairs, "tokens": ids, **{name: found[key] for name, key in keys.items()}}


if __name__ == "__main__":
    import tokenizers
    import transformers  # pyright: ignore[reportMissingImports]

    chats = json.loads(chat_recordings.FILE.read_text())
    loaded = tokenizers.Tokenizer.from_str(json.dumps(chats["tokenizer"]))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=loaded, **chat_recordings.SPECIAL)
    fast.chat_template = chats["templates"]["chatml"]
    content = {name: recorded(pairs, fast) for name, pairs in PAIRS.items()}
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")
