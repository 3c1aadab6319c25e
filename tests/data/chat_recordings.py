"""What transformers makes of conversations: `python -m tests.data.chat_recordings` records it anew.

It needs transformers, which the tests do not. Templates without marks are rendered by transformers up to each answer.
"""

import json
import pathlib
from typing import Any

FILE = pathlib.Path(__file__).parent / "recordings" / "chat.json"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>"}
TOOLS = [{"type": "function", "function": {"name": "<add>", "description": "é"}}]


def arguments(template: str, name: str) -> dict[str, Any]:
    """Tools for one of the cases."""
    return {"tools": TOOLS} if (template, name) == ("chatml", "two turns") else {}


def recorded(tokenizer: Any, template: str, conversation: list[Any], **options: Any) -> dict[str, Any]:
    """Tokens, and 1 for those of answers; or the error of the template."""
    options |= {"chat_template": template}

    def render(turns: list[Any], **more: Any) -> str:
        return tokenizer.apply_chat_template(turns, tokenize=False, **options, **more)

    try:
        if "endgeneration" in template:
            found = tokenizer.apply_chat_template(
                conversation, return_assistant_tokens_mask=True, return_dict=True, **options
            )
            return {"tokens": found["input_ids"], "mask": found["assistant_masks"]}
        encoded = tokenizer(render(conversation), add_special_tokens=False, return_offsets_mapping=True)
    except Exception as error:
        return {"error": str(error)}
    mask = [0] * len(encoded["input_ids"])
    for place, turn in enumerate(conversation):
        if turn["role"] == "assistant":
            start = len(render(conversation[:place], add_generation_prompt=True))
            end = len(render(conversation[: place + 1]))
            mask = [
                old or int(a < end and b > start) for old, (a, b) in zip(mask, encoded["offset_mapping"], strict=True)
            ]
    return {"tokens": encoded["input_ids"], "mask": mask}


if __name__ == "__main__":
    import tokenizers
    import transformers  # pyright: ignore[reportMissingImports]

    content = json.loads(FILE.read_text())
    loaded = tokenizers.Tokenizer.from_str(json.dumps(content["tokenizer"]))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=loaded, **SPECIAL)
    content["expected"] = {
        key: {
            name: recorded(fast, template, conversation, **arguments(key, name))
            for name, conversation in content["conversations"].items()
        }
        for key, template in content["templates"].items()
    }
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")
