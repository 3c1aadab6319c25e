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

With `import keras_dist as kd`. That a name is *here* means: the same arguments in the same order with the same
defaults and, where numbers come out, the same ones to within 1e-5. `tests/parity` compares both with Keras 3.15 on JAX.
What is otherwise is noted: "without" and "also" name arguments that only Keras or only keras_dist has.

This file is written by `python -m tests.parity.keras_names`; the tests fail when it is no longer true.

## What is different everywhere

**Arrays.** Weights are created sharded, under the distribution that is set when they are made, and a model keeps it.
Until then layers are descriptions; afterwards `layer.kernel` is a `kd.Variable`, an `nnx.Variable` that stays the same
object in all models. Models that share a layer live on one mesh, and one trains at a time. JAX is the only backend:
`kd.ops` has the names of `keras.ops`, and `jax.numpy` serves as well. Steps are compiled, unless `compile` gets
`run_eagerly=True` or `jit_compile=False`: they run operation by operation then.

**Names.** `dense`, `dense_1` are numbered within each model, so that the same code gives the same paths however often
it runs. Paths are made of the attributes that lead to a weight, and leave out the model: `dense_1/kernel`.
`model.layout_plan` shows them. Layout rules match these paths, and the full path that Keras gives the same weight where
that is another one, and nothing else: `sequential/dense_1/kernel`, `net/block/dense/kernel` of the subclassed model
`net`; a functional model and what it holds go without its name. Numbers are those of this model. A path of Keras
that would mean two weights here is left out, and so are paths through layers without a name of their own whose kind is
in several layers of the model: Keras numbers them across all. Name these layers. Losses, metrics and optimizers are
not numbered.

**Layers.** Any `flax.nnx.Module` serves as a layer or, by `kd.Model.from_nnx`, as a model. `kernel_layout` and the like
say where a weight lives; layouts with a mesh also where the model lives, if no distribution is set. `dtype` is an
element type, or a policy for all of a layer, not a map. Nothing is quantized. With LoRA `layer.kernel` is the frozen
weight, not the sum. Arguments that Keras ignores, or with which it gives NaN, are refused by an error that says what to
write instead. In functional models `base(x, training=False)` stays so in `fit`, and `training=True` in `predict`; Keras
overrides both. In a `call` that is given `training=True` by hand, `self.a(x, training=False)` says nothing about the
layers that are called after it; in Keras it leaks to them.

**Training.** A `train_step` is a method in the form of Keras on JAX, `train_step(self, state, data)`; or a pure
function `(state, batch, rngs) -> (state, logs)`, an argument of `compile` or a method: its parameters tell which.
Batches that the devices do not divide count for the rows they have. The `logs` of callbacks are lazy: a hook is called
when its step has been dispatched, and reading `logs` waits for the step. Plain `metrics` leave masked steps of
sequences out in `fit`, too, as in `evaluate`; Keras on JAX counts them in `fit`, since predictions lose their mask on
the way out of `jax.value_and_grad`. Integers of 64 bits that 32 do not hold are refused; JAX cuts them. Integers that
an `Embedding` or a sparse loss has no row or class for are an error outside of compiled steps, and inside with
`compile(check=True)`; otherwise NaN, or counted from the end.

**Losses.** Targets do not broadcast over predictions: shapes that differ in more than a last dim of 1 are an error; one
prediction for several targets, (batch, 1) beside (batch, n), is a warning. Rows that a mask leaves out may hold NaN; in
metrics that are means or sums, rows of weight 0 may.

**Optimizers.** They are optax transformations, and `compile` takes any of optax. `model.optimizer` is the object that
`compile` was given: it reads and writes the model's slots and learning rate, and nothing else about it changes. So one
optimizer trains one model: `compile` refuses one that another model has. A subclass defines `transformation`, not
`update_step`. `exclude_from_weight_decay(var_list=)` goes by identity; where there are only arrays, by paths.

**Overriding.** What Keras calls of a subclass and keras_dist does not is an error when the class is made, which says
what to do instead: `update_step`, `make_train_function` and others.

**Random numbers.** With one `seed`, functions, initializers and layers draw the bits that those of Keras draw on JAX.
`kd.set_random_seed` gives other initial weights than Keras. The first model that creates its weights has those of that
seed in every form and on every mesh, later ones have others. The `rngs` that the `call` of a `from_nnx` model, or that
of `predict(call=)`, is given differ from batch to batch, and from one `evaluate` or `predict` to the next unless it has
a `seed`. They depend on `batch_size`, not on the mesh.

**Training.** `layer.trainable` counts from the next `compile`; `fit` warns where it was set since. Metrics are values
of all rows so far: scalars that a function gives for a batch count by its rows; what a step in the form of Keras logs
last is what the epoch logs. Several losses of one output are logged as their sum. An epoch of `steps_per_epoch` steps
has never more, also where `steps_per_execution` does not divide them. All evaluations in one `fit` see the same
`validation_steps` batches of a generator; in Keras the first two are the same. The weights of a model that has seen no
input are an error, not an empty list.

**Files.** `.keras`, `.weights.h5` and `.weights.json` are those of Keras, in both directions, with the state of the
optimizer; `.h5` of Keras 2 is read, and written for functional models. Code in them is never run, with
`safe_mode=False` neither: `custom_objects` gives the function of a `Lambda` by the name of its layer. All other paths
are folders, or files of safetensors.

**Configs.** `get_config` follows from the arguments of the constructor, subclasses need not write it. Configs that
Keras wrote are read, too.

## Cells of Keras's guides that do not run

The cells of the guides and examples of Keras 3.15.1 that are for JAX or for every backend run with the import swapped
(tried with small arrays for downloads, and without weights). Of 181 these do not run, with Keras on JAX neither:

- `making_new_layers_and_models_via_subclassing`, the VAE at the end: `Sampling` draws without a seed in a compiled
  step, so that its numbers would be the same in each. Way around: `self.seed_generator = SeedGenerator()` in
  `__init__`, and `seed=self.seed_generator` in `call`.
- `demo_custom_jax_workflow`: `backend.Variable` is no public name of Keras 3.15. Way around: `keras.Variable`.
- `demo_jax_distributed`, the last cell: `Mesh(..., axis_names=(None, "out_chan"))`, but axes of JAX have names. Way
  around: `axis_names=("replica", "out_chan")`.

Of the code in their texts, `Input(shape=(784))` in `sequential_model` does not run, here and in Keras: `shape=(784,)`.
"""

NOTES = {
    "*Model": "`Model.from_nnx` takes any `flax.nnx` module",
    "applications.*.decode_predictions": "`class_index=` names the classes: nothing is downloaded",
    "applications.*.preprocess_input": "arrays of numpy are not changed",
    "applications.*": '`weights` are a local file, or None; `"imagenet"` raises',
    "utils.plot_model": "`.dot` files need no Graphviz",
    "Model.load_weights": "from files of safetensors; what was loaded comes back",
    "Model.save_weights": "to files of safetensors",
    "Model.export": "a program of `jax.export`, for `kd.export.load`",
    "Model.compile": "without a loss, added ones or a `train_step`, `fit` is an error; Keras trains on 0",
    "Model.train_on_batch": "gives the values of this batch",
    "activations.sparsemax": "adds up to 1, as in the paper",
    "*.clear_session": "there is nothing to clear: garbage is collected",
    "backend.set_epsilon": "compiled steps keep theirs",
    "*.set_floatx": "the dtype policy",
    "config.*_traceback_filtering": "no frames are filtered but JAX's",
    "config.*_flash_attention": "JAX chooses, unless `flash_attention=True` insists",
    "config.enable_unsafe_deserialization": "raises: nothing read from files is run",
    "config.set_backend": "JAX alone",
    "*.disable_interactive_logging": "progress goes to the logger `keras_dist`",
    "device": "outside of models, which live on their mesh",
    "name_scope": "names operations and free variables; paths of weights are made of attributes",
    "RematScope": "a layer in one that computes again does so with it",
    "remat": "`remat=` of `compile` does it without a change of the model",
    "utils.get_file": "finds files that are there; nothing is downloaded or unpacked",
    "callbacks.CallbackList": "`fit` makes it, or uses the one that it is given",
    "callbacks.CSVLogger": "appending to a file of other columns is refused",
    "callbacks.EarlyStopping": "NaN is never the best value",
    "callbacks.ModelCheckpoint": "weights alone, as safetensors",
    "callbacks.ReduceLROnPlateau": "NaN is never the best value; a rate that cannot be set raises",
    "callbacks.LearningRateScheduler": "a rate that cannot be set raises",
    "callbacks.TensorBoard": "through tensorboardX; the layout table for the graph; images and embeddings are refused",
    "callbacks.TerminateOnNaN": "a step late, without waiting; says whether a batch or which variables were first",
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
    "initializers.VarianceScaling": "one of `input_axes` and `output_axes` alone is refused",
    "keras.layers": """\
The arguments of weights (`kernel_initializer`, `bias_regularizer` and so on), and those that stand behind them in
Keras, are taken by keyword.""",
    "keras.ops": """\
All of them are here, for arrays, variables, and symbolic tensors, whose shapes and element types are those of the
results. Arrays are dense: `sparse=True` is refused, and `ragged=True`. Functions that are arguments, as of `map`, are
written into configs where they have a name that is registered. What `cond` returns does not depend on symbolic tensors
that its functions do not take as arguments.""",
    "keras.optimizers": """\
What all optimizers share is taken by keyword: `weight_decay` (unless it stands further in front), `clipnorm`,
`clipvalue`, `global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`, `loss_scale_factor`,
`gradient_accumulation_steps`, `name`, and in `Muon` what follows them. Accumulated batches of unequal length or weight
make the update of one large batch; Keras takes the mean of theirs.""",
    "layers.AlphaDropout": "a rate of 1 is refused",
    "layers.AugMix": "augmentations are chosen anew in each step; Keras chooses when it compiles",
    "layers.AutoContrast": "channels are those of `data_format`",
    "layers.CategoryEncoding": "`sparse=True` is refused",
    "layers.Discretization": "`sparse=True` is refused",
    "layers.FlaxLayer": "paths of weights are those of the module",
    "layers.GaussianDropout": "a rate of 1 is refused",
    "layers.GlobalAv*1D": "where every step is masked the mean is 0, not NaN",
    "layers.Hash*": "on the host, without TensorFlow; the same bins; `sparse=True` is refused",
    "layers.*Lookup": "on the host, without TensorFlow; configs hold the vocabulary; `sparse=True` is refused",
    "layers.JaxLayer": "paths of weights are those in the parameters",
    "layers.MultiHeadAttention": "a `query_mask` that is given is used; the causal mask follows `attention_axes`",
    "layers.RNN": "with `stateful=True` the states are in `weights`, and `fit`, `evaluate` and `predict` keep them",
    "layers.Random*": "dicts of images, labels and masks, without bounding boxes",
    "layers.TextVectorization": "on the host, without TensorFlow; configs hold the vocabulary; not sparse nor ragged",
    "layers.TimeDistributed": "what it adds to the loss counts for each position",
    "losses.*Focal*": "logits that are far off are exact, not clipped",
    "losses.*_focal_*": "logits that are far off are exact, not clipped",
    "losses.CategoricalCrossentropy": "smoothing spreads over the classes of `axis`",
    "losses.CategoricalGeneralizedCrossEntropy": "an index that is no class is an error, compiled NaN",
    "losses.SparseCategoricalCrossentropy": "an index that is no class is an error, compiled NaN; any `axis`",
    "losses.categorical_crossentropy": "smoothing spreads over the classes of `axis`",
    "losses.categorical_generalized_cross_entropy": "an index that is no class is an error, compiled NaN",
    "losses.sparse_categorical_crossentropy": "an index that is no class is an error, compiled NaN; any `axis`",
    "ops.*dot_product_attention": "logits are not capped",
    "ops.image.gaussian_blur": "`data_format=None` is `channels_last`; Keras takes it for `channels_first`",
    "ops.average_pool": "`strides=None` is `pool_size`; Keras fails",
    "ops.max_pool": "`strides=None` is `pool_size`; Keras fails",
    "ops.nn.average_pool": "`strides=None` is `pool_size`; Keras fails",
    "ops.nn.max_pool": "`strides=None` is `pool_size`; Keras fails",
    "ops.*sparse_categorical_crossentropy": "an index that is no class is an error, compiled NaN",
    "ops.*sparsemax": "adds up to 1, as in the paper",
    "optimizers.schedules.CosineDecayRestarts": "rounding does not put off a restart",
    "regularizers.Orthogonal*": "a single row costs nothing; Keras gives NaN",
    "regularizers.orthogonal*": "a single row costs nothing; Keras gives NaN",
    "*image_dataset_from_directory": "what Keras gives in the format `grain`, read by Pillow; batches of numpy arrays",
    "*text_dataset_from_directory": "what Keras gives in the format `grain`; batches of numpy arrays",
    "*timeseries_dataset_from_array": "what Keras gives in the format `grain`; batches of numpy arrays",
    "utils.bounding_boxes.affine_transform": "numbers of all images, and boxes of one",
    "utils.bounding_boxes.compute_ciou": "relative formats with `image_shape`; Keras refuses them",
    "utils.bounding_boxes.convert_format": "also `rel_center_yxhw`; a dict stays as it is, a copy is returned",
    "utils.split_dataset": "in memory; gives datasets of single rows",
    "utils.normalize": "keeps the shape of one row; `axis=0` is the first axis",
    "utils.to_categorical": "an index that is no class is refused",
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
    sections += ["\n## Methods\n", "Those that are as in Keras are not listed.", *_methods(keras)]
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
