"""Which names of Keras are here. `python -m tests.parity.keras_names` writes them to keras_dist/KERAS.md.

Names and arguments are compared. Notes on names that keras_dist has are in `NOTES`; replacements of names that it does
not have are in `keras_dist/_support/missing_names.py`, and those of methods in `INSTEAD`.
"""

import functools
import importlib
import inspect
import operator
import os
import pathlib
import types
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import keras_dist as kd
from keras_dist._support.missing_names import OF_KERAS, note_on
from tests.parity.signatures import BY_KEYWORD, DEFAULT, ELSEWHERE, EXTRA, MISSING, differences

FILE = pathlib.Path(kd.__file__).parent / "KERAS.md"

INTRODUCTION = """\
# Keras 3.15, name by name

With `import keras_dist as kd`. A name that is *here* has the same arguments in the same order with the same defaults,
and the same numerical results within 1e-5. `tests/parity` compares both with Keras 3.15 on JAX. Notes list the
exceptions: "without" and "also" name arguments that only Keras or only keras_dist has.

This file is written by `python -m tests.parity.keras_names`; the tests fail when it is out of date.

## What is different everywhere

**Arrays.** Weights are created sharded, under the current distribution of their creation, which the model keeps. Before
that layers have no arrays; afterwards `layer.kernel` is a `kd.Variable`, an `nnx.Variable` that is the same object in
all models. Models that share a layer use one mesh, and one of them trains at a time. JAX is the only backend: `kd.ops`
has the names of `keras.ops`, and `jax.numpy` works as well. Steps are compiled, unless `compile` gets
`run_eagerly=True` or `jit_compile=False`, which run them operation by operation.

**Names.** `dense`, `dense_1` are numbered within each model, so that the same code gives the same paths however often
it runs. Paths consist of the attributes that lead to a weight, without the model: `dense_1/kernel`.
`model.layout_plan` shows them. Layout rules match these paths, and also the full path of Keras where it differs:
`sequential/dense_1/kernel`, `net/block/dense/kernel` of the subclassed model `net`. The full path of a functional model
does not include the model's name. A path of Keras that would match two weights does not count, nor do paths through
unnamed layers of a kind that several layers of the model contain, because Keras numbers them across all layers. Name
these layers. Losses, metrics and optimizers are not numbered.

**Layers.** Any `flax.nnx.Module` can be a layer or, by `kd.Model.from_nnx`, a model. `kernel_layout` and similar
arguments shard weights; layouts with a mesh also set the mesh of the model, if no distribution is set. `dtype` is a
dtype, or a policy for the whole layer, not a map. `model.quantize` stores weights in forms of qwix, and no policy does.
With LoRA `layer.kernel` is the frozen weight, not the sum. Arguments that Keras ignores, or that give NaN in Keras,
raise an error that names the alternative. In functional models `base(x, training=False)` also holds in `fit`, and
`training=True` in `predict`; Keras overrides both. In a `call` with an explicit `training=True`, `self.a(x,
training=False)` does not affect layers that are called later; in Keras it does.

**Training.** A `train_step` is a method in the form of Keras on JAX, `train_step(self, state, data)`; or a pure
function `(state, batch, rngs) -> (state, logs)`, an argument of `compile` or a method. Its parameters distinguish both.
Partial batches are weighted by their rows. The `logs` of callbacks are lazy: a hook is called when its step has been
dispatched, and reading `logs` waits for the step. Plain `metrics` skip masked steps of sequences in `fit` and
`evaluate`; Keras on JAX counts them in `fit`, because predictions lose their mask in `jax.value_and_grad`. 64-bit
integers that do not fit into 32 bits are an error; JAX truncates them. Integers out of range for an `Embedding` or a
sparse loss are an error outside of compiled steps, and inside with `compile(check=True)`; otherwise they give NaN, or
count from the end.

**Losses.** Targets do not broadcast to predictions: shapes that differ in more than a last dim of 1 are an error. One
prediction for several targets, (batch, 1) beside (batch, n), is a warning. Masked rows may contain NaN; in metrics that
are means or sums, so may rows of weight 0.

**Optimizers.** They are optax transformations, and `compile` takes any optax transformation. `model.optimizer` is the
object that `compile` was given: it reads and writes the model's slots and learning rate, and nothing else about it
changes. An optimizer trains one model: `compile` rejects an optimizer of another model. A subclass defines
`transformation`, not `update_step`. `exclude_from_weight_decay(var_list=)` compares by identity, or by paths for plain
arrays.

**Overriding.** Methods that Keras calls in a subclass and keras_dist does not, such as `update_step` and
`make_train_function`, are an error when the class is defined, which names the alternative.

**Random numbers.** With the same `seed`, functions, initializers and layers draw the same bits as Keras on JAX.
`kd.set_random_seed` gives other initial weights than in Keras. The first model that creates its weights has the same
weights for a seed in every form and on every mesh; later models have others. The `rngs` for the `call` of a `from_nnx`
model, or of `predict(call=)`, differ between batches, and between calls of `evaluate` or `predict` unless the model has
a `seed`. They depend on `batch_size`, not on the mesh.

**Logs.** `layer.trainable` takes effect at the next `compile`; `fit` warns if it was set later. Metrics are values over
all rows so far: scalars that a function returns for a batch are weighted by its rows. The logs of an epoch are the last
logs of a step in the form of Keras. Several losses of one output are logged as their sum. An epoch of `steps_per_epoch`
steps is never longer, also if `steps_per_execution` does not divide it. All evaluations in one `fit` use the same
`validation_steps` batches of a generator; in Keras the first two do. The weights of a model without input are an error,
not an empty list.

**Files.** `.keras`, `.weights.h5` and `.weights.json` are compatible with Keras in both directions, including the state
of the optimizer. `.h5` of Keras 2 is refused: Keras 3 reads it, and writes `.keras`. Code in files is never run, also
not with `safe_mode=False`: `custom_objects` provides the function of a `Lambda` by the name of its layer. All other
paths are folders, or files of safetensors.

**Configs.** `get_config` follows from the arguments of the constructor; subclasses need not define it. Configs of Keras
are read, too.

## Cells of Keras's guides that do not run

The cells of the guides and examples of Keras 3.15.1 for JAX or for all backends run with the import replaced
(with small arrays for downloads, and no weights). Of 181 cells these do not run, nor do they with Keras on JAX:

- `making_new_layers_and_models_via_subclassing`, the VAE at the end: `Sampling` draws without a seed in a compiled
  step, so that each step would draw the same numbers. Workaround: `self.seed_generator = SeedGenerator()` in
  `__init__`, and `seed=self.seed_generator` in `call`.
- `demo_custom_jax_workflow`: `backend.Variable` is not a public name of Keras 3.15. Workaround: `keras.Variable`.
- `demo_jax_distributed`, the last cell: `Mesh(..., axis_names=(None, "out_chan"))`, but axes of JAX need names.
  Workaround: `axis_names=("replica", "out_chan")`.

In their texts `Input(shape=(784))` of `sequential_model` does not run, here and in Keras: write `shape=(784,)`.
"""

NOTES = {
    "*Model": "`Model.from_nnx` takes any `flax.nnx` module",
    "utils.plot_model": "`.dot` files need no Graphviz",
    "Model.load_weights": "also from safetensors; returns a report",
    "Model.save_weights": "also to safetensors",
    "Model.export": "a program of `jax.export`, for `kd.export.load`",
    "Model.compile": "without any loss or `train_step`, `fit` is an error; Keras trains on 0",
    "Model.train_on_batch": "returns the values of this batch",
    "activations.sparsemax": "sums to 1, as in the paper",
    "*.clear_session": "only collects garbage",
    "backend.set_epsilon": "compiled steps keep theirs",
    "*.set_floatx": "the dtype policy",
    "config.*_traceback_filtering": "no frames are filtered but JAX's",
    "config.*_flash_attention": "JAX chooses, unless `flash_attention=True` insists",
    "config.enable_unsafe_deserialization": "raises: nothing read from files is run",
    "config.set_backend": "JAX alone",
    "*.disable_interactive_logging": "progress goes to the logger `keras_dist`",
    "device": "outside of models, which use their mesh",
    "name_scope": "names operations and free variables; paths of weights are made of attributes",
    "RematScope": "a layer in one that computes again does so with it",
    "remat": "`remat=` of `compile` does it without a change of the model",
    "utils.get_file": "finds local files; nothing is downloaded or unpacked",
    "callbacks.CallbackList": "`fit` creates it, or uses a given one",
    "callbacks.CSVLogger": "appending to a file with other columns is an error",
    "callbacks.EarlyStopping": "NaN is never the best value",
    "callbacks.ModelCheckpoint": "weights alone, as safetensors",
    "callbacks.ReduceLROnPlateau": "NaN is never the best value; a rate that cannot be set raises",
    "callbacks.LearningRateScheduler": "a rate that cannot be set raises",
    "callbacks.TensorBoard": "through tensorboardX; the layout table for the graph; images and embeddings are refused",
    "callbacks.TerminateOnNaN": "a step late, without waiting; reports whether a batch or which variables were first",
    "datasets.mnist.load_data": "through tfds, without TensorFlow",
    "keras.distribution": """\
Keras's `distribution_lib_test.py` and `jax_multi_process_distribution_test.py` pass, but for tests that reach into
Keras: `data_shard_id` of a strategy follows from where its devices lie on the mesh, not from a patched number of
processes, so that the base class has none; and our `Variable` takes no private `_layout`: a layer says where a weight
lives by `kernel_layout=` and its like.""",
    "distribution.DataParallel": "`shard_optimizer=True` is ZeRO-1",
    "distribution.DeviceMesh": "sizes by name: `DeviceMesh({'data': 2, 'model': 4})`",
    "distribution.LayoutMap": "rules without effect warn",
    "distribution.ModelParallel": "rules without effect raise under `strict=True`; sharding metadata are rules, too",
    "initializers.VarianceScaling": "one of `input_axes` and `output_axes` without the other is an error",
    "keras.layers": """\
The arguments of weights (`kernel_initializer`, `bias_regularizer` and so on), and arguments after them in Keras, are
keyword-only.""",
    "keras.ops": """\
All names are here, for arrays, variables and symbolic tensors. Arrays are dense: `sparse=True` and `ragged=True` are
errors. Functions as arguments, such as of `map`, are serialized by their registered names. What `cond` returns does not
depend on symbolic tensors that its functions do not take as arguments.""",
    "keras.optimizers": """\
Arguments of all optimizers are keyword-only: `weight_decay` (unless it comes earlier), `clipnorm`, `clipvalue`,
`global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`, `loss_scale_factor`,
`gradient_accumulation_steps`, `name`, and in `Muon` the arguments after them. Accumulated batches of unequal length or
weight give the update of one large batch; Keras averages their gradients.""",
    "optimizers.Muon": "also kernels of more than two dims are matrices, and biases of two dims are not",
    "layers.AlphaDropout": "a rate of 1 is an error",
    "layers.CategoryEncoding": "`sparse=True` is an error",
    "layers.Discretization": "`sparse=True` is an error",
    "layers.FlaxLayer": "paths of weights are those of the module",
    "layers.GaussianDropout": "a rate of 1 is an error",
    "layers.GlobalAv*1D": "where every step is masked the mean is 0, not NaN",
    "layers.Hashing": "on the host, without TensorFlow; the same bins; `sparse=True` is an error",
    "layers.*Lookup": "on the host, without TensorFlow; configs hold the vocabulary; `sparse=True` is an error",
    "layers.JaxLayer": "paths of weights are those in the parameters",
    "layers.MultiHeadAttention": "a `query_mask` that is given is used; the causal mask follows `attention_axes`",
    "layers.RNN": "with `stateful=True` the states are in `weights`, and `fit`, `evaluate` and `predict` keep them",
    "layers.Random*": "dicts of images, labels and masks, without bounding boxes",
    "layers.TextVectorization": "on the host, without TensorFlow; configs hold the vocabulary; not sparse nor ragged",
    "layers.TimeDistributed": "added losses count for each position",
    "losses.*Focal*": "large logits give exact losses, not clipped",
    "losses.*_focal_*": "large logits give exact losses, not clipped",
    "losses.CategoricalCrossentropy": "smoothing spreads over the classes of `axis`",
    "losses.CategoricalGeneralizedCrossEntropy": "an index out of range is an error, or NaN in compiled steps",
    "losses.SparseCategoricalCrossentropy": "an index out of range is an error, or NaN in compiled steps; any `axis`",
    "losses.categorical_crossentropy": "smoothing spreads over the classes of `axis`",
    "losses.categorical_generalized_cross_entropy": "an index out of range is an error, or NaN in compiled steps",
    "losses.sparse_categorical_crossentropy": "an index out of range is an error, or NaN in compiled steps; any `axis`",
    "ops.*dot_product_attention": "logits are not capped",
    "ops.image.gaussian_blur": "`data_format=None` is `channels_last`; Keras takes it for `channels_first`",
    "ops.average_pool": "`strides=None` is `pool_size`; Keras fails",
    "ops.max_pool": "`strides=None` is `pool_size`; Keras fails",
    "ops.nn.average_pool": "`strides=None` is `pool_size`; Keras fails",
    "ops.nn.max_pool": "`strides=None` is `pool_size`; Keras fails",
    "ops.*sparse_categorical_crossentropy": "an index out of range is an error, or NaN in compiled steps",
    "ops.*sparsemax": "sums to 1, as in the paper",
    "optimizers.schedules.CosineDecayRestarts": "rounding does not delay a restart",
    "regularizers.Orthogonal*": "a single row has no penalty; NaN in Keras",
    "regularizers.orthogonal*": "a single row has no penalty; NaN in Keras",
    "*image_dataset_from_directory": "as in Keras with the format `grain`, read by Pillow; batches of numpy arrays",
    "*text_dataset_from_directory": "as in Keras with the format `grain`; batches of numpy arrays",
    "*timeseries_dataset_from_array": "as in Keras with the format `grain`; batches of numpy arrays",
    "utils.split_dataset": "in memory; gives datasets of single rows",
    "utils.normalize": "keeps the shape of one row; `axis=0` is the first axis",
    "utils.to_categorical": "a class index out of range is an error",
}
"""What is to be said about names that are here, beside the arguments that differ, and about namespaces."""

INSTEAD = {
    **OF_KERAS,
    "Model.make_*_function": "steps are compiled when they are first needed",
    "optimizers.Optimizer.add_*variable*": "`transformation`: optax makes the state",
    "optimizers.Optimizer.assign*": "`variable.assign`",
    "optimizers.Optimizer.load_own_variables": "`optimizer.set_weights`",
    "optimizers.Optimizer.save_own_variables": "`optimizer.variables`",
    "optimizers.Optimizer.update_step": "`transformation`, and `update` of optax",
}
"""What to use instead of names, namespaces and methods that keras_dist does not have."""

OTHERS: set[str] = set()
"""Namespaces of ours that are called as those of Keras, and are something else."""

METHODS = ("Layer", "Model", "optimizers.Optimizer", "losses.Loss", "metrics.Metric", "callbacks.Callback")
"""Classes whose methods are told, too, where they differ; what a `Layer` has is not repeated for the `Model`."""

INTERNAL = ("*quantiz*", "add_metric", "compute_loss_and_updates", "jax_state_sync", "*ed_call", "symbolic_call")
"""Methods that Keras does not document."""

_WORDS = {
    MISSING: "without {}",
    EXTRA: "also {}",
    DEFAULT: "another default of {}",
    ELSEWHERE: "at another place: {}",
    BY_KEYWORD: "by keyword: {}",
}


def public_names(module: types.ModuleType, prefix: str = "") -> dict[str, Any]:
    """What a package exports, packages in it included, by dotted names."""
    found: dict[str, Any] = {}
    for name in (name for name in dir(module) if not name.startswith("_")):
        value = getattr(module, name)
        if not isinstance(value, types.ModuleType):
            found[prefix + name] = value
        elif value.__name__ == f"{module.__name__}.{name}" and name != "src":
            found |= public_names(value, f"{prefix}{name}.")
    return found


def ours(name: str) -> Any:
    """What keras_dist exports under this name; None if it does not."""
    package, _, attribute = name.rpartition(".")
    module = _package(package)
    public = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    return getattr(module, attribute) if module is not None and attribute in public else None


def entries(keras: types.ModuleType) -> dict[str, Any]:
    """What each name of Keras stands for; a package that keras_dist does not have is one entry, `ops.*`."""
    names: dict[str, Any] = {}
    for name, value in public_names(keras).items():
        package = _absent_package(name)
        names.setdefault(f"{package}.*" if package else name, value)
    return names


def render(keras: types.ModuleType) -> str:
    """The text of the file."""
    tables: dict[str, list[str]] = {}
    for name, theirs in entries(keras).items():
        first, _, rest = name.removesuffix(".*").partition(".")
        namespace = f"keras.{first}" if rest else "keras"
        shown = name.removeprefix(f"{first}.") if rest else name
        tables.setdefault(namespace, []).append(_row(shown, *_told(name, theirs)))
    sections = [INTRODUCTION, "## What is here\n", _titles("namespace", "here", "of")]
    for namespace, rows in tables.items():
        link = f"[`{namespace}`](#{namespace.replace('.', '')})"
        sections.append(f"| {link} | {sum('| no |' not in row for row in rows)} | {len(rows)} |")
    for namespace, rows in tables.items():
        paragraph = [f"{NOTES[namespace]}\n"] if namespace in NOTES else []
        sections += [f"\n## {namespace}\n", *paragraph, _titles("Keras", "here", "note"), *rows]
    sections += ["\n## Methods\n", "Methods that are as in Keras are not listed.", *_methods(keras)]
    return "\n".join(sections) + "\n"


def _told(name: str, theirs: Any) -> tuple[str, str]:
    """Whether a name is here, and what is to be said about it."""
    mine = ours(name)
    if mine is None:
        return "no", note_on(name, INSTEAD)
    arguments = differences(mine, theirs) if callable(theirs) else {}
    if name.startswith(("Optimizer", "optimizers.", "layers.")):
        arguments = {argument: word for argument, word in arguments.items() if word != BY_KEYWORD}
    return f"`kd.{name}`", "; ".join(filter(None, [_in_words(arguments), note_on(name, NOTES)]))


def _methods(keras: types.ModuleType) -> Iterator[str]:
    for name in METHODS:
        theirs, mine = operator.attrgetter(name)(keras), ours(name)
        shown = dir(keras.Layer) if name == "Model" else []
        rows = []
        for method, function in inspect.getmembers(theirs, inspect.isroutine):
            if method.startswith("_") or method in shown or any(fnmatchcase(method, words) for words in INTERNAL):
                continue
            own = getattr(mine, method, None)
            if inspect.isfunction(own) and not isinstance(inspect.getattr_static(mine, method), staticmethod):
                own = types.MethodType(own, mine)  # methods of `Model` call their instance `model`
            note = note_on(f"{name}.{method}", INSTEAD if own is None else NOTES)
            words = "" if own is None else _in_words(differences(own, function))
            if own is None or words or note:
                rows.append(_row(method, "no" if own is None else "yes", "; ".join(filter(None, [words, note]))))
        table = [_titles("method", "here", "note"), *rows] if rows else ["All are here."]
        yield from ("", f"### keras.{name}", "", *table)


def _in_words(arguments: dict[str, str]) -> str:
    """Differences between parameters."""
    by_word = {word: [f"`{name}`" for name, found in arguments.items() if found == word] for word in _WORDS}
    return "; ".join(_WORDS[word].format(", ".join(some)) for word, some in by_word.items() if some)


@functools.cache
def _package(name: str) -> types.ModuleType | None:
    if name in OTHERS:
        return None
    try:
        return importlib.import_module(f"keras_dist.{name}".rstrip("."))
    except ModuleNotFoundError:
        return None


def _absent_package(name: str) -> str | None:
    """The largest package with this name in it that keras_dist does not have."""
    parts = name.split(".")[:-1]
    packages = (".".join(parts[: depth + 1]) for depth in range(len(parts)))
    return next((package for package in packages if _package(package) is None), None)


def _row(name: str, here: str, note: str) -> str:
    return f"| `{name}` | {here} | {note} |"


def _titles(*titles: str) -> str:
    return f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"


def main() -> None:
    """Write the file."""
    os.environ["KERAS_BACKEND"] = "jax"  # read when keras is imported
    FILE.write_text(render(importlib.import_module("keras")))


if __name__ == "__main__":
    main()
