"""What the arguments of `Model`'s methods may be."""

from __future__ import annotations

import math
from typing import Any

from keras_dist._arguments import check_int, check_number, check_option, is_int
from keras_dist.data.arrays import ArraySource
from keras_dist.data.batching import Batching, Streaming, Validation
from keras_dist.data.class_weights import weights_of_classes
from keras_dist.data.conversion import check_batch_size
from keras_dist.data.recognition import Source, is_data_set, source_of
from keras_dist.data.streams import StreamSource
from keras_dist.errors import DataError, ModelError, shorten
from keras_dist.training.choices import StepOptions


def batching(
    source: Source, batch_size: Any, steps: Any, size_argument: str = "batch_size", steps_argument: str = "steps"
) -> Batching | Streaming:
    """The source in batches of `batch_size` rows; for None of 32, or so many that `steps` of them are all.

    Raises:
        DataError: the batch size is not a positive integer, or the source has batches already, or they never end.
        ModelError: the number of steps is neither one nor None.
    """
    if steps is not None:
        steps = check_steps(steps_argument, steps)
    if isinstance(source, StreamSource):
        if batch_size is not None:
            raise DataError(
                f"`{size_argument}` cannot be given beside batches",
                given=f"{size_argument}={shorten(batch_size)}, {source.title}",
                expected="a source that makes its batches itself",
                fix=f"leave out {size_argument}, or let the source make larger or smaller batches",
            )
        return Streaming(source, steps, steps_argument)
    default = 32 if steps is None else -(-source.length // steps)
    return Batching(source, check_batch_size(batch_size, size_argument, default), steps)


def training_sources(
    arrays: tuple[Any, Any, Any], class_weight: Any, validation_split: Any, validation_data: Any
) -> tuple[Source, Source | None]:
    """The examples to train on, and those to validate with.

    Raises:
        DataError: an argument cannot be used.
    """
    wrong = "is not a part of the examples"
    check_number("validation_split", validation_split, 0, below=1, wrong=wrong, example=0.2, error=DataError)
    source, validation = source_of(*arrays), None
    if validation_data is not None:
        validation = validation_source(validation_data)
    elif validation_split:
        source, validation = split_source(source, validation_split)
    return weighted_by_class(source, class_weight), validation


def weighted_by_class(source: Source, class_weight: Any) -> Source:
    """The source with the weights of classes as weights of examples; itself without any.

    Raises:
        DataError: examples have weights already, or there is not one class for each.
    """
    if isinstance(source, ArraySource) or class_weight is None:
        return weighted_arrays(source, class_weight) if isinstance(source, ArraySource) else source
    if not isinstance(source, StreamSource):
        raise _not_in_memory("class_weight", source)
    return source.weighted(lambda y: weights_of_classes(y, class_weight))


def weighted_arrays(source: ArraySource, class_weight: Any) -> ArraySource:
    """The examples with the weights of classes as weights of examples; themselves without any.

    Raises:
        DataError: examples have weights already, or there is not one class for each.
    """
    if class_weight is None:
        return source
    x, y, sample_weight = source.arrays
    if sample_weight is not None:
        raise DataError(
            "`class_weight` and `sample_weight` cannot be given at the same time",
            given=f"class_weight={shorten(class_weight)}, and a sample_weight",
            expected="one of them",
            fix="multiply sample_weight by the weight of each example's class",
        )
    return ArraySource(x, y, weights_of_classes(y, class_weight), source.name)


def split_source(source: Source, validation_split: float) -> tuple[ArraySource, ArraySource]:
    """The first rows, and the last ones, which are that part of all.

    Raises:
        DataError: one of them would be empty, or the rows are not in memory.
    """
    if not isinstance(source, ArraySource):
        raise _not_in_memory("validation_split", source)
    at = math.floor(source.length * (1.0 - validation_split))
    if at in (0, source.length):
        raise DataError(
            "`validation_split` leaves no rows to train on" if at == 0 else "`validation_split` takes no rows",
            given=f"validation_split={validation_split} of {source.length} rows",
            expected="at least one row for training and one for validation",
            fix="another part, or more examples",
        )
    return source.split(at)


def validation(source: Source | None, batch_size: Any, steps: Any, freq: Any) -> Validation | None:
    """What is evaluated after which epochs; None without examples.

    Raises:
        DataError: the batch size cannot be used.
        ModelError: the number of steps or the frequency cannot.
    """
    freq = check_freq(freq)
    if source is None:
        return None
    return Validation(batching(source, batch_size, steps, "validation_batch_size", "validation_steps"), freq)


def check_freq(validation_freq: Any) -> int | list[int]:
    """`validation_freq`, if it is a number of epochs or a list of epochs.

    Raises:
        ModelError: it is not.
    """
    epochs = validation_freq if isinstance(validation_freq, list) else [validation_freq]
    if epochs and all(is_int(epoch, 1) for epoch in epochs):
        return [int(epoch) for epoch in epochs] if isinstance(validation_freq, list) else int(validation_freq)
    raise ModelError(
        "`validation_freq` tells no epochs",
        given=f"validation_freq={shorten(validation_freq)}",
        expected="an integer of at least 1, or a list of epochs that are counted from 1",
        fix="validation_freq=2 validates after every other epoch, [1, 10] after the first and the tenth",
    )


def validation_source(validation_data: Any) -> Source:
    """The examples of `validation_data`.

    Raises:
        DataError: it is neither `(x, y)` or `(x, y, sample_weight)`, nor a data set.
    """
    if is_data_set(validation_data):
        return source_of(validation_data, name="validation ")
    if not isinstance(validation_data, tuple | list) or len(validation_data) not in (2, 3):
        raise DataError(
            "`validation_data` cannot be used",
            given=f"{type(validation_data).__name__}"
            + (f" of length {len(validation_data)}" if isinstance(validation_data, tuple | list) else ""),
            expected="(x, y) or (x, y, sample_weight), or a data set",
            fix="fit(..., validation_data=(x_test, y_test))",
        )
    x, y, *weights = validation_data
    return source_of(x, y, *weights, name="validation ")


def _not_in_memory(argument: str, source: Source) -> DataError:
    return DataError(
        f"`{argument}` is for arrays",
        given=f"{argument}, and {type(source).__name__} of {source.title}",
        expected="x and y as arrays in memory",
        fix="let the data set do it: hold rows out, or give sample weights itself",
    )


def step_options(
    run_eagerly: Any, steps_per_execution: Any, jit_compile: Any, donate: Any, check: Any, prefetch: Any
) -> StepOptions:
    """How the steps run.

    Raises:
        ModelError: an argument is none of its options.
    """
    check_option("run_eagerly", run_eagerly, (True, False))
    check_option("jit_compile", jit_compile, (True, False, "auto"))
    check_option("donate", donate, (False, True))
    check_option("check", check, (False, True))
    steps = None
    if not isinstance(steps_per_execution, str) or steps_per_execution != "auto":
        steps = check_steps("steps_per_execution", steps_per_execution, "'auto'")
    jit = not run_eagerly and jit_compile is not False
    ahead = check_steps("prefetch", prefetch, "")
    return StepOptions(steps, jit, bool(donate and not check), bool(check), ahead)


def check_steps(argument: str, value: Any, alternative: str = "None") -> int:
    """`value`, the value of `argument`, if it is a number of steps.

    Raises:
        ModelError: it is not an integer of at least 1.
    """
    return check_int(argument, value, 1, wrong="is not a number of steps", alternative=alternative, example=10)


def epoch_range(initial_epoch: Any, epochs: Any) -> range:
    """The numbers of the epochs from `initial_epoch` to `epochs`.

    Raises:
        ModelError: one of them is not an integer of at least 0.
    """
    first = check_int("initial_epoch", initial_epoch, 0, wrong="is not a number of epochs")
    return range(first, check_int("epochs", epochs, 0, wrong="is not a number of epochs", example=3))
