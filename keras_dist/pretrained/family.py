"""`Family`: how `config.json` and the names of weights of `transformers` translate, in both directions.

A family is tables, so that reading and writing cannot disagree: entries of `config.json` against fields of the config,
and paths of weights against names in the file. What no table can say is in `options` and `entries`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from keras_dist._support.arguments import LARGEST_SIZE, is_int, is_number
from keras_dist.errors import ConfigError, UnknownNameError, cause, one_of, shorten
from keras_dist.formats.quantized_files import is_readable
from keras_dist.pretrained.config import DecoderConfig, NetworkConfig, Rotary, field_of
from keras_dist.pretrained.config_values import wrong_value

_HARMLESS = """
_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures
attn_implementation auto_map bad_words_ids cache_implementation chunk_size_feed_forward directionality diversity_penalty
do_sample dtype early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
gradient_checkpointing id2label is_encoder_decoder is_llama_config label2id length_penalty max_length
max_sequence_length min_length model_max_length model_type no_repeat_ngram_size num_beam_groups num_beams num_labels
num_return_sequences output_attentions output_hidden_states output_past output_scores prefix pretraining_tp problem_type
remove_invalid_values repetition_penalty return_dict return_dict_in_generate summary_activation summary_proj_to_labels
summary_type summary_use_proj task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype
torchscript transformers.js_config transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
use_return_dict xla_device
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Entries of `config.json` that do not change what a network computes at inference."""

_HARMLESS_ENDS = re.compile(r".*(dropout|dropout_prob|_pdrop|_token_ids?|suppress_tokens)")
_FACTORS = re.compile(r"(?!att).*(multiplier|scal|factor)")  # an attention multiplier of 1 replaces 1 / sqrt(head_dim)
_ON = re.compile(r"(is_|use_)?(causal|rope|rotary.*)")
"""Flags that are true if they are left out."""

_SAME_ACTIVATIONS = {"swish": "silu", "gelu_python": "gelu", "gelu_python_tanh": "gelu_pytorch_tanh"}
_SAME_ACTIVATIONS |= dict.fromkeys(("gelu_accurate", "gelu_fast"), "gelu_new")
"""Names of one function in `transformers.activations.ACT2FN`."""

WITH_BIASES = {
    **dict.fromkeys(("attention.use_bias", "attention.use_output_bias", "feed_forward.use_bias"), True),
    "feed_forward.gated": False,
    "norm.kind": "layer",
}
"""Fields of networks with LayerNormalization, biases everywhere and no gate."""

Document = Mapping[str, Any]
"""The content of a `config.json`."""

Kind = TypeVar("Kind", bound="type[Family]")

_Check = Callable[[Any], bool]


def _all_are(kind: type) -> _Check:
    return lambda value: isinstance(value, list) and all(isinstance(each, kind) for each in value)


_ENTRIES: tuple[tuple[tuple[str, ...], _Check, str], ...] = (
    (("rope_parameters", "rope_scaling"), lambda value: isinstance(value, Mapping), "a dict"),
    (("architectures", "layer_types"), _all_are(str), "a list of names"),
    (("no_rope_layers",), _all_are(int), "a list of integers"),
    (
        (
            *("partial_rotary_factor", "query_pre_attn_scalar"),
            *("global_rope_theta", "local_rope_theta", "rope_local_base_freq", "rope_theta"),
        ),
        lambda value: is_number(value) and 0 < value < 1e38,
        "a positive number below 1e38",
    ),
    (
        (
            *("global_attn_every_n_layers", "image_size", "local_attention", "no_rope_layer_interval"),
            *("pooler_output_size", "sliding_window_pattern"),
        ),
        lambda value: is_int(value, 1, LARGEST_SIZE),
        "a positive integer",
    ),
    (("max_window_layers",), lambda value: is_int(value, 0, LARGEST_SIZE), "a number of layers"),
    (("use_sliding_window",), lambda value: isinstance(value, bool), "true or false"),
)
"""Entries that `options` of the families read: their names, and what they must be."""

_MOST_LAYERS = 10_000
"""Most layers of a network in a file: each is an object."""


class Family:
    """The translation of one `model_type`. `DecoderFamily` and `EncoderFamily` have tables that most families share.

    Attributes:
        model_type: the name of the family, set by `register_family`.
        kind: the class of the config.
        architecture: the class of `transformers` that loads the files, for configs that were not loaded.
        keys: for entries of `config.json` the field of the config, such as `"attention.num_heads"`.
        defaults: values of entries that `config.json` may leave out; others are required.
        fixed: values of fields that all networks of the family share.
        only: for entries of `config.json` the values that are supported, of which the first is the default.
        handled: entries that `options` reads.
        harmless: more entries that do not change what the network computes.
        names: for rules of paths the name in the file; see `keras_dist.interop.WeightMap`. Rules without a weight are
            left out.
        transform: for rules of paths the change of form.
        copies: for names in the file the other name of the same array, where the head is tied to the embeddings.
        ignored: rules for names in the file that no weight needs.
        prefix: beginning of names in the file, which some files leave out.
    """

    model_type: str = ""
    kind: ClassVar[type[NetworkConfig]] = DecoderConfig
    architecture: ClassVar[str] = ""
    keys: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    fixed: ClassVar[Mapping[str, Any]] = {}
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    handled: ClassVar[Sequence[str]] = ()
    harmless: ClassVar[Sequence[str]] = ()
    names: ClassVar[Mapping[Any, Any]] = {}
    transform: ClassVar[Mapping[str, Any]] = {}
    copies: ClassVar[Mapping[str, str]] = {}
    ignored: ClassVar[Sequence[str]] = ()
    prefix: ClassVar[str] = ""

    def positions(self, document: Document) -> dict[str, Any]:
        """Return the fields of rotary position embeddings."""
        del document
        return {}

    def options(self, document: Document) -> dict[str, Any]:
        """Return fields that do not follow from one entry of `config.json`, such as `{"attention.window": 4096}`."""
        del document
        return {}

    def entries(self, config: Any) -> dict[str, Any]:
        """Return the entries of `config.json` that `options` reads."""
        del config
        return {}

    def has_prefix(self, config: Any) -> bool:
        """Return whether names in files that `transformers` writes for a config have the prefix."""
        del config
        return True

    def tables(self, names_in_file: Collection[str]) -> tuple[Mapping[Any, Any], Mapping[str, Any]]:
        """Return `names` and `transform` for a file with these names; without names for a new file."""
        del names_in_file
        return self.names, self.transform

    def read(self, document: Document) -> NetworkConfig:
        """Return the config for the content of a `config.json`.

        Raises:
            ConfigError: entries are missing, or have values that are not supported; all are listed.
        """
        layers = next((key for key, field in self.keys.items() if field == "num_layers"), "")
        if isinstance(count := document.get(layers), int) and count > _MOST_LAYERS:
            summary = f"the config.json of a {self.model_type!r} network is damaged, or forged"
            raise ConfigError(summary, given=f"{layers}={shorten(count)}", expected=f"at most {_MOST_LAYERS} layers")
        wrong = dict(self._wrong_entries(document))
        missing = [key for key in self.keys if key not in self.defaults and document.get(key) is None]
        problems = [f"missing: {', '.join(missing)}"] if missing else []
        problems += [*self._unsupported(document), *wrong.values()]
        named = [*missing, *wrong]
        missing += wrong.keys() - self.defaults.keys()
        later: list[str] = []
        left_out = {"quantization_config", *self.keys, *self.handled}  # `save` writes weights in floating point
        extra = {key: value for key, value in document.items() if key not in left_out}
        given = {key: value for key, value in document.items() if key not in wrong}
        fields: dict[str, Any] = {field: self.defaults.get(key) for key, field in self.keys.items()}
        fields |= {field: given[key] for key, field in self.keys.items() if key in given} | dict(self.fixed)
        for field in fields.keys() & {"feed_forward.activation", "pooled_activation"}:
            name = fields[field]
            fields[field] = _SAME_ACTIVATIONS.get(name, name) if isinstance(name, str) else name
        document = {**self.defaults, **given}
        for read in (self.positions, self.options):
            try:
                fields |= read(document)
            except ConfigError as error:
                later.append(error.given)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                if not missing:
                    later.append(f"an entry has the wrong type: {cause(error)}")
        try:
            found = self.kind.from_config({"family": self.model_type, "extra": extra, **fields})
        except ConfigError as error:
            later += self._of_entries(given, error.problems, missing, bool(problems or later))
        later = [text for text in later if not any(re.search(rf"\b{key}=", text) for key in named)]  # consequences
        problems += dict.fromkeys(later)
        if problems:
            summary = f"the config.json of a {self.model_type!r} network cannot be used"
            fix = "load it with transformers, or correct config.json"
            if any(" is unknown " in problem for problem in problems):
                fix += "; delete unknown entries that do not change the results there, or add a family that has them"
            raise ConfigError(summary, given="; ".join(problems), fix=fix)
        return found

    def write(self, config: NetworkConfig) -> dict[str, Any]:
        """Return the content of `config.json` for a config.

        Raises:
            ConfigError: networks of this family do not have these options.
        """
        written = {key: _plain(_field(config, field)) for key, field in self.keys.items()}
        start = {"architectures": [self.architecture], **config.extra, "model_type": self.model_type}
        document = {**start, **written, **self.entries(config)}
        lost = _differences(_canonical(config), _canonical(self.read(document)))
        if lost:
            summary = f"networks of the family {self.model_type!r} do not have these options"
            fix = "choose another family, or add one that has them by kd.pretrained.register_family"
            raise ConfigError(summary, given=", ".join(lost), fix=fix)
        return document

    def _wrong_entries(self, document: Document) -> Iterator[tuple[str, str]]:
        """Yield entries whose value has the wrong type or size, with the problem."""
        known = {"architectures", *self.keys, *self.handled, *self.defaults} - self.only.keys()
        for key, value in document.items():
            if key in known and (value is not None or self.defaults.get(key) is not None):
                field = self.keys.get(key)
                wrong = [f"must be {text}" for keys, is_valid, text in _ENTRIES if key in keys and not is_valid(value)]
                wrong += [] if field is None else filter(None, [wrong_value(field_of(self.kind, field), value)])
                yield from ((key, f"{key}={shorten(value)} {problem}") for problem in wrong[:1])

    def _of_entries(
        self, given: Document, problems: Sequence[tuple[str, str]], missing: Sequence[str], follows: bool
    ) -> Iterator[str]:
        """Yield problems of fields under the names of the entries, without fields that `options` could not set."""
        names: dict[str, str] = {}
        for key, field in self.keys.items():
            names[field] = names[field] if field in names and given.get(key) is None else key
        for group, problem in problems:
            name, _, value = problem.partition("=")
            field = f"{group}{name}"
            if value.startswith("None ") and (names[field] in missing if field in names else follows):
                continue
            yield re.sub(r"\w+(?==)", lambda match: names.get(f"{group}{match[0]}", match[0]), problem)  # noqa: B023

    def _unsupported(self, document: Document) -> Iterator[str]:
        quantization = document.get("quantization_config")
        if quantization is not None and not is_readable(quantization):
            forms = "fp8 in blocks of 128 x 128, and nf4 of bitsandbytes"
            yield f"quantization_config={shorten(quantization)} is not supported, only {forms}"
        for key, supported in self.only.items():
            if document.get(key, supported[0]) not in supported:
                yield f"{key}={shorten(document[key])} is not supported, only {' or '.join(map(repr, supported))}"
        known = {*HARMLESS, *self.keys, *self.handled, *self.defaults, *self.only, *self.harmless}
        known.add("quantization_config")
        given = {**self.defaults, **document}
        slides = "sliding_window" in self.keys and given["sliding_window"] and given.get("use_sliding_window", True)
        for key, value in document.items():
            if key not in known and not _HARMLESS_ENDS.fullmatch(key) and not _is_neutral(key, value, bool(slides)):
                yield f"{key}={shorten(value)} is unknown for {self.model_type!r}, and may change the results"


_families: dict[str, Family] = {}


def register_family(model_type: str) -> Callable[[Kind], Kind]:
    """Return a decorator that registers a `Family` for folders whose `config.json` has this `model_type`.

    Args:
        model_type: the entry of `config.json`.
    """

    def register(family: Kind) -> Kind:
        made: Any = family()
        made.model_type = model_type
        _families[model_type] = made
        return family

    return register


def family_named(model_type: Any) -> Family:
    """Return the family of a `model_type`.

    Raises:
        UnknownNameError: it is not registered.
    """
    if not isinstance(model_type, str) or model_type not in _families:
        fix = "load it with transformers, or add the family by kd.pretrained.register_family; "
        fix += "under another model_type the same weights give other results"  # so no name is suggested
        summary = f"unknown model_type {shorten(model_type)}"
        raise UnknownNameError(summary, expected=one_of(_families), fix=fix)
    return _families[model_type]


_OLD_TYPES = {"su": "longrope"}


def read_rotary(document: Document, parameters: Document | None = None) -> Rotary:
    """Return the rotary embeddings in a `config.json`, also of `transformers` 4.

    Args:
        document: the content of `config.json`.
        parameters: by default `rope_parameters`, or else `rope_scaling`.
    """
    both = [document[key] for key in ("rope_parameters", "rope_scaling") if document.get(key)]
    if parameters is None and len(both) == 2 and both[0] != both[1]:
        raise ConfigError("two rotary embeddings", given="rope_parameters and rope_scaling differ: keep one of them")
    given = parameters or (both[0] if both else {})
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    kind = options.pop("type", None)
    options["rope_type"] = options.get("rope_type") or _OLD_TYPES.get(kind, kind) or "default"
    for key in ("rope_theta", "partial_rotary_factor"):
        if options.get(key) is None and document.get(key) is not None:
            options[key] = document[key]
    if options["rope_type"] in ("llama3", "yarn", "longrope"):
        lengths = (document.get("original_max_position_embeddings"), options.get("original_max_position_embeddings"))
        found = next((length for length in lengths if length is not None), document.get("max_position_embeddings"))
        options["original_max_position_embeddings"] = found
    known = {field.name for field in dataclasses.fields(Rotary)}
    unknown = {key: value for key, value in options.items() if key not in known and value}
    if unknown:
        raise ConfigError("unknown rotary options", given=f"rotary options {shorten(unknown)} are not supported")
    return Rotary(**{key: value for key, value in options.items() if key in known and value is not None})


def written_rotary(rotary: Rotary) -> dict[str, Any]:
    """Return `rope_parameters` for rotary embeddings."""
    always = ("rope_theta", "rope_type")
    fields = dataclasses.fields(rotary)
    values = {field.name: (getattr(rotary, field.name), field.default) for field in fields}
    return {name: _plain(value) for name, (value, default) in values.items() if name in always or value != default}


def _is_neutral(key: str, value: Any, slides: bool) -> bool:
    """Whether a network without the entry computes the same; `slides` if all of its layers have a window."""
    if key == "layer_types" and isinstance(value, list):
        return all(kind == ("sliding_attention" if slides else "full_attention") for kind in value)
    if isinstance(value, int | float) and not isinstance(value, bool) and _FACTORS.match(key):
        return value == 1
    return value is None or (not value and not (value is False and _ON.fullmatch(key)))


def size_of_heads(document: Document, size: str, heads: str) -> int | None:
    """Return the quotient of two entries, which must be an integer; None for entries that are not valid.

    Raises:
        ConfigError: the number of heads does not divide the size.
    """
    dividend, divisor = document.get(size), document.get(heads)
    if not isinstance(dividend, int) or not isinstance(divisor, int) or divisor < 1:
        return None
    if dividend % divisor:
        raise ConfigError("heads of unequal sizes", given=f"{heads}={divisor} must divide {size}={dividend}")
    return dividend // divisor


def prefixed(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return names that begin with a prefix."""
    return {path: f"{prefix}{name}" for path, name in names.items()}


def dense(path: str, name: str) -> dict[str, str]:
    """Return the names of kernel and bias of a layer."""
    return {f"{path}/kernel": f"{name}.weight", f"{path}/bias": f"{name}.bias"}


def layer_norm(path: str, name: str) -> dict[str, str]:
    """Return the names of gamma and beta of a `LayerNormalization`."""
    return {f"{path}/gamma": f"{name}.weight", f"{path}/beta": f"{name}.bias"}


def _canonical(config: NetworkConfig) -> NetworkConfig:
    """Return a config that lists the layers with a window and names factors, without what is chosen for training."""
    heads = dataclasses.replace(config.attention, implementation="auto", qk_clip=None)
    heads = dataclasses.replace(heads, scale=heads.score_scale)
    sliding = tuple(layer for layer in range(config.num_layers) if heads.slides(layer))
    heads = dataclasses.replace(heads, window=heads.window if sliding else None, sliding_layers=sliding)
    experts = config.experts and dataclasses.replace(config.experts, capacity_factor=None)
    return dataclasses.replace(config, attention=heads, experts=experts)


def _differences(config: Any, other: Any, prefix: str = "") -> list[str]:
    """Return the options of a config that differ from another one."""
    found: list[str] = []
    for field in dataclasses.fields(config):
        value, again = (getattr(each, field.name) for each in (config, other))
        if dataclasses.is_dataclass(value) and dataclasses.is_dataclass(again):
            found += _differences(value, again, f"{prefix}{field.name}.")
        elif value != again and field.name != "extra":
            found.append(f"{prefix}{field.name}={shorten(value)}")
    return found


def _field(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
