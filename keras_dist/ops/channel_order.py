"""The order of the dims of images, where operations are not told it."""

from keras_dist.config.settings import check_data_format


def is_last(data_format: str | None, name: str) -> bool:
    """Return whether `data_format` is `"channels_last"`, or the default is; errors name the operation `name`."""
    return check_data_format(data_format, name) == "channels_last"
