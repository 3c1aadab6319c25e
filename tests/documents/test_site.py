"""The site is built without a warning and without a network, and its pages are small."""

import re
import subprocess
import sys

import pytest

from tests.processes import environment
from tests.test_documentation import ROOT

LARGEST_BYTES = 2**20


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-c", "docs"]
    run = subprocess.run(
        [*command, "-d", ROOT / ".cache" / "docs", ".", folder],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    return folder


@pytest.mark.slow
@pytest.mark.multiprocess
def test_pages_are_small_and_load_nothing_from_elsewhere(site):
    pages = [*site.rglob("*.html")]
    assert len(pages) > 60
    assert not {page.name: page.stat().st_size for page in pages if page.stat().st_size > LARGEST_BYTES}
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(https?:[^\"]+)", page.read_text())
        assert not loaded, (page.name, loaded)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_links_between_pages_lead_somewhere(site):
    for page in (page for page in site.rglob("*.html") if "_static" not in page.parts):  # templates of the theme
        for target, anchor in re.findall(r"href=\"(?!\w+:)([^\"#?]*)(?:#([^\"]*))?\"", page.read_text()):
            there = (page.parent / target) if target else page
            assert there.exists(), (page.name, target)
            if anchor and there.suffix == ".html":
                assert f'id="{anchor}"' in there.read_text(), (page.name, target, anchor)
