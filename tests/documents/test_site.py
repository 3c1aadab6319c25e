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


def check_links(page, text, pages):
    for target, anchor in re.findall(r"href=\"(?!\w+:)([^\"#?]*)(?:#([^\"]*))?\"", text):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), (page.name, target)
        if anchor and there.suffix == ".html":
            assert f'id="{anchor}"' in pages[there], (page.name, target, anchor)
