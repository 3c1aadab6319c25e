"""The site is built without a warning and without a network, and its pages are small."""

import faulthandler
import re
import subprocess
import sys

import pytest

from tests.processes import environment
from tests.test_documentation import ROOT

LARGEST_BYTES = 2**20


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_site(tmp_path):
    """One test: each worker of pytest-xdist would build the site for its own."""
    faulthandler.cancel_dump_traceback_later()  # on a busy machine it takes longer than a deadlock is given
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-c", "docs"]
    run = subprocess.run(
        [*command, "-d", ROOT / ".cache" / "docs", ".", tmp_path],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    pages = {page: page.read_text() for page in tmp_path.rglob("*.html")}
    assert len(pages) > 60
    assert not {page.name: len(text) for page, text in pages.items() if page.stat().st_size > LARGEST_BYTES}
    for page, text in pages.items():
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(https?:[^\"]+)", text)
        assert not loaded, (page.name, loaded)
        if "_static" not in page.parts:  # templates of the theme
            check_links(page, text, pages)

    check_margin(pages[tmp_path / "docs" / "reference" / "generated" / "keras_dist.callbacks.html"])
    assert "notebooks/pretrained.html" in (tmp_path / "docs" / "start" / "pretrained.html").read_text()


def check_margin(text):
    """The contents beside a page list classes once, and methods without the class before them."""
    margin = text.partition('id="pst-secondary-sidebar"')[2]
    entries = re.findall(r"<li class=\"(toc-h\d) nav-item[^>]*><a [^>]*>(.*?)</a>", margin, re.DOTALL)
    classes, methods = (
        [re.sub(r"<[^>]+>", "", name) for at, name in entries if at == level] for level in ("toc-h2", "toc-h3")
    )
    assert {"BackupAndRestore", "EarlyStopping"} < {*classes} and len({*classes}) == len(classes)
    assert "on_epoch_end()" in methods and not [name for name in methods if "." in name]


def check_links(page, text, pages):
    for target, anchor in re.findall(r"href=\"(?!\w+:)([^\"#?]*)(?:#([^\"]*))?\"", text):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), (page.name, target)
        if anchor and there.suffix == ".html":
            assert f'id="{anchor}"' in pages[there], (page.name, target, anchor)
