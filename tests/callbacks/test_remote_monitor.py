"""`RemoteMonitor`: what a server gets."""

import http.server
import json
import threading
import urllib.parse

import numpy as np
import pytest

from keras_dist.callbacks import RemoteMonitor
from keras_dist.errors import ModelError


@pytest.fixture
def server():
    """A server on this machine, and what it was sent: path, headers, body."""
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            received.append((self.path, dict(self.headers), body))
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}", received
        serving.shutdown()
        thread.join()


LOGS = {"loss": np.float32(0.5), "val": np.arange(2)}
SENT = {"loss": 0.5, "val": [0, 1], "epoch": 3}


def test_it_sends_a_form_or_json(server):
    root, received = server
    RemoteMonitor(root, field="logs").on_epoch_end(3, LOGS)
    RemoteMonitor(root, "/here", headers={"X-Run": "7"}, send_as_json=True).on_epoch_end(3, LOGS)
    (path, _, form), (other, headers, text) = received
    assert (path, other) == ("/publish/epoch/end/", "/here")
    assert json.loads(urllib.parse.parse_qs(form)["logs"][0]) == json.loads(text) == SENT
    assert (headers["Content-Type"], headers["X-Run"]) == ("application/json", "7")


def test_it_warns_of_servers_that_fail(server):
    root, _ = server
    for monitor in (RemoteMonitor(root, "/broken"), RemoteMonitor("http://127.0.0.1:9")):
        with pytest.warns(UserWarning, match="Could not reach RemoteMonitor root server"):
            monitor.on_epoch_end(0, {})


def test_it_sends_to_servers_only():
    with pytest.raises(ModelError, match="must be the URL of a server"):
        RemoteMonitor("file:///etc")


def test_only_the_first_process_of_a_job_sends(server, monkeypatch):
    root, received = server
    monkeypatch.setattr("keras_dist.callbacks.remote_monitor.is_chief", lambda: False)
    RemoteMonitor(root).on_epoch_end(3, LOGS)
    assert not received
