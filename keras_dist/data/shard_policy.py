"""`ShardPolicy`: how a data set is divided among the processes of a job."""

from __future__ import annotations

import enum

from keras_dist.errors import DataError, did_you_mean, shorten


class ShardPolicy(enum.StrEnum):
    """How a data set is divided among the processes of a job. Where one is expected, its value does, too.

    Attributes:
        AUTO: FILE if the files of the data set are known and there is one for each group of processes, else DATA.
        DATA: every process reads all rows and keeps its share of each global batch.
        FILE: whole files go to the groups.
        OFF: the process is given its own share already; nothing is cut.

    Raises:
        DataError: there is no such policy.

    Source: `tf.data.experimental.AutoShardPolicy`.
    """

    AUTO = "auto"
    DATA = "data"
    FILE = "file"
    OFF = "off"

    @classmethod
    def _missing_(cls, value: object) -> ShardPolicy:
        options = [policy.value for policy in cls]
        raise DataError(
            "there is no such policy" + (did_you_mean(value.lower(), options) if isinstance(value, str) else ""),
            given=f"policy={shorten(value)}",
            expected=f"one of {', '.join(map(repr, options))}",
            fix="policy='auto'",
        )
