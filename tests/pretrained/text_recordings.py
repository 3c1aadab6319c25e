"""What transformers makes of text and tokens: `python -m tests.pretrained.text_recordings` records it anew.

It needs transformers, which the tests do not.
"""

import json
import pathlib
import random
import tempfile
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

FILE = pathlib.Path(__file__).parent / "text_recordings.json"
CHAT = pathlib.Path(__file__).parent.parent / "data" / "recordings" / "chat.json"
TEXTS = ("", "Hello, world !", "  two  spaces\n\nand lines ", "é 你好 👩‍🚀", "do n't 's . </s> it", "\ufffd<s>")
MARKS = ".,!?'nt s"


def byte_level() -> dict[str, Any]:
    """The files of a folder whose tokens are of bytes, with a chat template."""
    recorded = json.loads(CHAT.read_text())
    config = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "chat_template": recorded["templates"]["chatml, marked"],
    }
    return {
        "tokenizer.json": recorded["tokenizer"],
        "tokenizer_config.json": config,
        "config.json": {"eos_token_id": 9},
    }


def byte_fallback() -> dict[str, Any]:
    """As of Llama 2: pieces of words, single bytes for others, and a first token."""

    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁HeloWrldspacniti,!.n't", "▁two", "▁", "."]
    vocab = {word: place for place, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    config = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "clean_up_tokenization_spaces": True,
    }
    ends = {"eos_token_id": [2, 261]}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config, "generation_config.json": ends}


def word_pieces() -> dict[str, Any]:
    """Words and their ends, with spaces that transformers removes; the last token is not in the tokenizer's list."""

    words = ["[UNK]", "hello", "##ing", "##s", *MARKS.split(" ")[0], *"nts", "do", "n't", "'s", "it", "[END]"]
    vocab = {word: place for place, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece("##", cleanup=False)
    config = {"unk_token": "[UNK]", "eos_token": "[END]", "clean_up_tokenization_spaces": True}
    flags = {"add_bos_token": False, "add_eos_token": True}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config | flags}


CASES = {"byte level": byte_level, "byte fallback": byte_fallback, "word pieces": word_pieces}


def written(folder: pathlib.Path, files: dict[str, Any]) -> pathlib.Path:
    """The folder, with these files."""
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def recorded(transformers: Any, files: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Tokens of texts and of a conversation, and texts of tokens."""

    folder = written(pathlib.Path(tempfile.mkdtemp()), files)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    known = len(tokenizer)
    lists = [[draw.randrange(known) for _ in range(draw.randrange(30))] for _ in range(60)]
    found: dict[str, Any] = {
        "files": files,
        "texts": [[text, tokenizer(text)["input_ids"]] for text in TEXTS],
        "decoded": [[each, tokenizer.decode(each, skip_special_tokens=True)] for each in lists],
    }
    if "generation_config.json" in files:
        found["ends"] = transformers.GenerationConfig.from_pretrained(folder).eos_token_id
    if tokenizer.chat_template:
        conversations = json.loads(CHAT.read_text())["conversations"]
        rendered = {
            name: tokenizer.apply_chat_template(each, add_generation_prompt=True, return_dict=True)["input_ids"]
            for name, each in conversations.items()
        }
        found["conversations"] = rendered
    return found


if __name__ == "__main__":
    import transformers  # pyright: ignore[reportMissingImports]

    draw, content = random.Random(0), {}
    for key, make in CASES.items():
        made = make()
        if not isinstance(made["tokenizer.json"], dict):
            made["tokenizer.json"] = json.loads(made["tokenizer.json"].to_str())
        content[key] = recorded(transformers, made, draw)
    FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")
