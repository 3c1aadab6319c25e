"""`RemoteMonitor`: sends the logs of epochs to a server."""

from __future__ import annotations

import http.client
import json
import urllib.parse
import urllib.request
import warnings
from collections.abc import Mapping

import numpy as np

from keras_dist.callbacks.callback import Callback, Logs
from keras_dist.distribution.job import is_chief
from keras_dist.errors import ModelError, shorten

_TIMEOUT_SECONDS = 10


class RemoteMonitor(Callback):
    """Sends the logs of each epoch to a server, as an HTTP POST of JSON; in a job the first process does.

    A server that cannot be reached, does not answer in ten seconds, or answers with an error is warned of, and training
    goes on.

    Args:
        root: URL of the server, `http://` or `https://`.
        path: what follows it.
        field: the name of the field of a form that holds the JSON; not used with `send_as_json`.
        headers: of HTTP, by name.
        send_as_json: whether the JSON itself is sent, as `application/json`, in place of a form.

    Raises:
        ModelError: `root` is another kind of URL.

    Example:
        >>> import keras_dist as kd
        >>> kd.callbacks.RemoteMonitor("https://example.org", send_as_json=True).path
        '/publish/epoch/end/'

    Differs from Keras: the package `requests` is not needed.
    """

    def __init__(
        self,
        root: str = "http://localhost:9000",
        path: str = "/publish/epoch/end/",
        field: str = "data",
        headers: Mapping[str, str] | None = None,
        send_as_json: bool = False,
    ) -> None:
        super().__init__()
        if not str(root).startswith(("http://", "https://")):  # urllib would read files, too
            summary = "RemoteMonitor: `root` must be the URL of a server, http://... or https://..."
            raise ModelError(summary, given=f"root={shorten(root)}", fix='for example root="http://localhost:9000"')
        self.root = root
        self.path = path
        self.field = field
        self.headers = headers
        self.send_as_json = send_as_json

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Send the epoch and its logs."""
        if not is_chief():
            return
        values = {name: np.asarray(value).tolist() for name, value in (logs or {}).items()}
        text = json.dumps({**values, "epoch": epoch})
        kind = "application/json" if self.send_as_json else "application/x-www-form-urlencoded"
        data = text if self.send_as_json else urllib.parse.urlencode({self.field: text})
        headers = {"Content-Type": kind, **(self.headers or {})}
        request = urllib.request.Request(self.root + self.path, data.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
                pass
        except (OSError, http.client.HTTPException) as error:
            warnings.warn(f"Could not reach RemoteMonitor root server at {self.root}: {error}", stacklevel=2)
