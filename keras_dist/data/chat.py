"""`chat`: conversations as packed rows of tokens, with the tokenizer and the chat template of a folder.

A template is code of someone else: jinja2's immutable sandbox renders it. The tokens of answers are those between
`{% generation %}` and `{% endgeneration %}`. Two characters of Unicode's private use mark these places in the text, and
are removed before it is encoded. Of a template without marks an answer is what it adds to the text before, up to where
the model is to answer.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from keras_dist._support.arguments import check_int, check_option, is_int
from keras_dist._support.extras import import_extra
from keras_dist._support.located_warnings import warn
from keras_dist.data.packing import PackedRows, pack
from keras_dist.data.parquet_files import parquet_rows
from keras_dist.errors import DataError, cause, shorten

_START, _END = "\ue0f0", "\ue0f1"
_MOST_BYTES = 2**20  # of a template
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_CLEANED = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'")]
_CLEANED += [(f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")]
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

Messages = Sequence[Mapping[str, Any]]


def chat(
    conversations: Any,
    folder: str | os.PathLike[str],
    *,
    length: int = 4096,
    train_on: str = "assistant",
    messages: str = "messages",
    template: str | None = None,
) -> PackedRows:
    """Encode conversations, and pack them into rows; see `pack` for the rows.

    A conversation is a list of messages `{"role": ..., "content": ...}`, or a dict with them, and with `tools` where
    the template takes some. One that is longer than a row is cut after an answer, and left out if none fits; a warning
    counts both. All tokens are kept in memory.

    Args:
        conversations: a list, a `datasets.Dataset` or another iterable, or the path of a `.jsonl` or `.parquet` file.
        folder: the folder of a network, with `tokenizer.json`, and `chat_template.jinja` or `tokenizer_config.json`.
        length: number of tokens in a row.
        train_on: "assistant" weighs the tokens of answers 1, and others 0; "all" weighs all 1.
        messages: key of the messages in conversations that are dicts.
        template: a template instead of the folder's, for example with `{% generation %}` around answers.

    Returns:
        Rows by number, as `pack` returns them, for the loss "causal_lm".

    Raises:
        DataError: a file, a message or an argument cannot be used, the template refuses a conversation, or it renders
            an answer in another way where messages follow.
        MissingExtraError: `tokenizers` or `jinja2` is not installed, or for `.parquet` files `pyarrow`.

    Example:
        >>> import json, pathlib, tempfile
        >>> import keras_dist as kd
        >>> folder = pathlib.Path(tempfile.mkdtemp())  # in practice of a network, with its tokenizer
        >>> words = {"type": "WordLevel", "vocab": {"?": 0, "hello": 1, "world": 2, ":": 3}, "unk_token": "?"}
        >>> tokenizer = {"version": "1.0", "model": words, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}
        >>> _ = (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        >>> conversation = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]
        >>> template = "{% for each in messages %}{{ each.role }}: {{ each.content }} {% endfor %}"
        >>> template += "{% if add_generation_prompt %}assistant:{% endif %}"
        >>> rows = kd.data.chat([conversation], folder, length=8, template=template)
        >>> x, y, weights = rows[0]
        >>> x["tokens"].tolist(), weights.astype(int).tolist()
        ([0, 3, 1, 0, 3, 2, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0])

    Source: `apply_chat_template(return_assistant_tokens_mask=True)` of transformers.
    """
    check_int("length", length, 2, error=DataError)
    check_option("train_on", train_on, ("assistant", "all"), error=DataError)
    door = FolderTokenizer(pathlib.Path(folder).expanduser(), template)
    encoded, cut, dropped = [], 0, 0
    for number, (turns, tools) in enumerate(_conversations(conversations, messages)):
        fitting = door.fitting(turns, tools, length, train_on == "assistant", number)
        if fitting is None:
            dropped += 1
            continue
        found, count = fitting
        cut += count < len(turns)
        encoded.append(found)
    if cut or dropped:
        total = len(encoded) + dropped
        warn(
            f"chat: of {total} conversations, {cut} are longer than {length} tokens and cut after an answer, and "
            f"{dropped} left out, as no answer fits"
        )
    rows = pack(encoded, length, pad_id=door.pad_id, overlong="error", loss_mask="weights")
    return cast("PackedRows", rows)  # since the source has a length


class FolderTokenizer:
    """The tokenizer and the chat template of a folder; `user` is the function that needs them."""

    def __init__(self, folder: pathlib.Path, template: str | None = None, user: str = "`chat`") -> None:
        tokenizers = import_extra("tokenizers", "chat", user)
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no other class
            raise DataError(f"{str(path)!r} cannot be read", given=cause(error), fix="give its folder") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        config = _read_json(folder / "tokenizer_config.json")
        given = {name: config.get(name) for name in _SPECIAL}
        texts = {name: one.get("content") if isinstance(one, dict) else one for name, one in given.items()}
        self._special = {name: text for name, text in texts.items() if isinstance(text, str)}
        self.pad_id = next(iter(self._special_ids("pad_token")), 0)
        self._folder, self._config, self._given_template, self._user = folder, config, template, user
        added = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        named = {text for text in self._special.values() if self._tokenizer.token_to_id(text) is not None}
        self._tokenizer.add_special_tokens(sorted(named - added))  # as transformers

    @functools.cached_property
    def _template_text(self) -> str:
        return _template_of(self._folder, self._config) if self._given_template is None else self._given_template

    @functools.cached_property
    def _template(self) -> Any:
        return _compiled(self._template_text, self._user)

    @property
    def _is_marked(self) -> bool:
        return "endgeneration" in self._template_text

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with special ones at its ends if the tokenizer adds some."""
        return self._tokenizer.encode(text).ids

    def encode_answer(self, before: Any, answer: Any, tools: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a text or of messages, then an answer, and 1 where an answer after `before` is."""
        is_text = isinstance(answer, str)
        if is_text:
            text, spans = before + answer, [(len(before), len(before) + len(answer))]
        else:
            text, spans = self._rendered([*before, *answer], tools, number, len(before))
        encoding = self._tokenizer.encode(text, add_special_tokens=is_text)
        tokens, weights = encoding.ids, _weights(encoding.offsets, spans)
        end = self._special_ids("eos_token") if is_text else []
        if end and tokens[-1:] != end:
            tokens, weights = [*tokens, *end], np.append(weights, np.uint8(1))
        return np.array(tokens, np.int32), weights

    def encode_conversation(self, turns: Messages, tools: Any, number: int) -> list[int]:
        """Return the tokens of a conversation, up to where the model is to answer."""
        text, _ = _without_marks(self._render(turns, tools, number, add_generation_prompt=True))
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, as `decode(skip_special_tokens=True)` of transformers."""
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        for old, new in _CLEANED if self.is_cleaned else ():
            text = text.replace(old, new)
        return text

    @functools.cached_property
    def is_cleaned(self) -> bool:
        """Whether spaces are removed from text, which transformers does unless the tokenizer is of BPE."""
        is_asked = self._config.get("clean_up_tokenization_spaces") is True
        return is_asked and type(self._tokenizer.model).__name__ != "BPE"

    def is_byte(self, token: int) -> bool:
        """Whether a token is a byte, `<0x0A>`: bytes become text together, once another token follows."""
        return _BYTE.fullmatch(self._tokenizer.id_to_token(token) or "") is not None

    @functools.cached_property
    def stop_tokens(self) -> list[int]:
        """Tokens that end an answer: of `generation_config.json`, else of `config.json`, else of the tokenizer."""
        for path in (self._folder / "generation_config.json", self._folder / "config.json"):
            found: Any = _read_json(path).get("eos_token_id")
            listed: list[Any] = found if isinstance(found, list) else [found]
            if found is not None and not all(is_int(token, 0, 2**31 - 1) for token in listed):
                summary = f"`eos_token_id` of {str(path)!r} must be a token, or a list of tokens"
                raise DataError(summary, given=shorten(found), fix="correct it, or pass `stop_tokens`")
            if found is not None:
                return listed
        return self._special_ids("eos_token")

    def _special_ids(self, name: str) -> list[int]:
        found = self._tokenizer.token_to_id(self._special.get(name, ""))
        return [] if found is None else [found]

    def fitting(
        self, turns: Messages, tools: Any, length: int, answers_alone: bool, number: int
    ) -> tuple[dict[str, np.ndarray], int] | None:
        """Return tokens and weights of as many messages as fit, up to an answer, and their number; None if none do."""
        ends = [end for end in range(len(turns), 0, -1) if end == len(turns) or turns[end - 1]["role"] == "assistant"]
        for end in ends:
            text, spans = self._rendered(turns[:end], tools, number)
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            if len(encoding.ids) <= length:
                weights = _weights(encoding.offsets, spans) if answers_alone else np.ones(len(encoding.ids), np.uint8)
                is_trained = weights.any() and len(weights) > 1
                return ({"tokens": np.array(encoding.ids, np.int32), "weights": weights}, end) if is_trained else None
        return None

    def _rendered(self, turns: Messages, tools: Any, number: int, first: int = 0) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of messages, and the places in it of answers from message `first` on."""
        whole = self._render(turns, tools, number)
        if self._is_marked:
            text, spans = _without_marks(whole)
            before = self._render(turns[:first], tools, number) if first else ""
            return text, spans[before.count(_START) :]
        spans = []
        for place in (place for place in range(first, len(turns)) if turns[place]["role"] == "assistant"):
            before = self._render(turns[:place], tools, number, add_generation_prompt=True)
            until = self._render(turns[: place + 1], tools, number)
            if not until.startswith(before) or not whole.startswith(until):
                given = f"message {place} of conversation {number}, an answer"
                fix = "pass the template with `{% generation %}` and `{% endgeneration %}` around answers as `template`"
                raise DataError(
                    "chat: the template renders an answer in another way than what follows", given=given, fix=fix
                )
            spans.append((len(before), len(until)))
        return whole, spans

    def _render(self, turns: Messages, tools: Any, number: int, **options: Any) -> str:
        options = {"add_generation_prompt": False, **self._special, **options}
        template = self._template
        try:
            return template.render(messages=turns, tools=tools, documents=None, **options)
        except Exception as error:  # the template is code of someone else
            summary = f"chat: the template cannot render conversation {number}"
            raise DataError(summary, given=cause(error), fix="correct the conversation, or pass `template`") from error


def _weights(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return 1 for the tokens with a character in a span."""
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    found = np.zeros(len(starts), np.uint8)
    for start, end in spans:
        found |= (starts < end) & (ends > start)
    return found


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text without the marks of answers, and the places of these."""
    first, *others = text.split(_START)
    plain, spans = first, []
    for other in others:
        answer, _, rest = other.partition(_END)
        spans.append((len(plain), len(plain) + len(answer)))
        plain += answer + rest
    return plain, spans


def _conversations(source: Any, key: str) -> Iterator[tuple[Messages, Any]]:
    """Yield the messages and the tools of each conversation."""
    fix = "pass the column of the conversations, list<struct<role, content>>, as `messages`"
    for number, row in enumerate(rows_of(source, [key], False, fix)):
        yield messages_of(row, key, number)


def rows_of(source: Any, columns: Sequence[str], takes_text: bool, fix: str) -> Any:
    """Return the rows in a file of JSON lines or of Parquet, if a path is given; anything else unchanged."""
    if not isinstance(source, str | os.PathLike):
        return source
    path = pathlib.Path(source).expanduser()
    return parquet_rows(path, columns, takes_text, fix) if path.suffix == ".parquet" else _lines(path)


def messages_of(row: Any, key: str, number: int) -> tuple[Messages, Any]:
    """Return the messages and the tools of a conversation."""
    turns: Any = row.get(key) if isinstance(row, Mapping) else row
    if not are_messages(turns):
        summary = f"chat: conversation {number} must be a list of messages, or a dict with them as {key!r}"
        raise DataError(summary, given=shorten(row), fix='[{"role": "user", "content": "Hello"}, ...]')
    check_unmarked(turns, f"chat: conversation {number}")
    return turns, row.get("tools") if isinstance(row, Mapping) else None


def are_messages(turns: Any) -> bool:
    """Whether these are messages, of which there is at least one."""
    is_list = isinstance(turns, Sequence) and not isinstance(turns, str | bytes) and len(turns) > 0
    return is_list and all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in turns)


def check_unmarked(value: Any, title: str) -> None:
    """Check that texts do not contain the marks of answers."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if _START in text or _END in text:
        raise DataError(f"{title} has a character U+E0F0 or U+E0F1", fix="remove it")


def _lines(path: pathlib.Path) -> Iterator[Any]:
    """Yield the values in a file of JSON lines."""
    try:
        with path.open(encoding="utf-8") as file:
            for line, text in enumerate(file, 1):
                if text.strip():
                    try:
                        yield json.loads(text)
                    except (ValueError, RecursionError) as error:
                        raise DataError(f"line {line} of {str(path)!r} is not JSON", given=cause(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        fix = "give the path of a file with a JSON value in each line"
        raise DataError(f"{str(path)!r} cannot be read", given=cause(error), fix=fix) from error


def _read_json(path: pathlib.Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{str(path)!r} cannot be read", given=cause(error)) from error
    return found if isinstance(found, dict) else {}


def _template_of(folder: pathlib.Path, config: Mapping[str, Any]) -> str:
    """Return the template of a folder: of several the one named `default`."""
    path = folder / "chat_template.jinja"
    try:
        found = path.read_text("utf-8") if path.exists() else config.get("chat_template")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{str(path)!r} cannot be read", given=cause(error)) from error
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        fix = "give the folder of a network that was trained on conversations, or pass `template`"
        raise DataError(f"chat: {str(folder)!r} has no chat template", fix=fix)
    return found


def _compiled(text: str, user: str) -> Any:
    """Compile a template in the environment of transformers."""
    jinja2, ext, nodes, sandbox = (
        import_extra(f"jinja2{module}", "chat", user) for module in ("", ".ext", ".nodes", ".sandbox")
    )

    class Generation(ext.Extension):
        """Marks what is between `{% generation %}` and `{% endgeneration %}`."""

        tags: ClassVar[set[str]] = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{_START}{caller()}{_END}"

    def refuse(message: object) -> None:
        raise jinja2.TemplateError(str(message))

    def to_json(value: Any, **options: Any) -> str:
        written: dict[str, Any] = {"ensure_ascii": False, **options}
        return json.dumps(value, **written)

    if not isinstance(text, str) or len(text) > _MOST_BYTES:
        raise DataError("chat: `template` must be a text of at most 1 MiB", given=shorten(text))
    extensions = [Generation, ext.loopcontrols]
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise DataError("chat: the template cannot be compiled", given=cause(error)) from error
