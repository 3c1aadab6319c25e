"""The navigation of the site and its index pages list the same pages, in the same groups and order."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[2] / "docs"
START = (DOCS / "index.md").read_text()
TOCTREES = {
    caption.strip('"'): [line for line in body.split("\n") if line and not line.startswith(":")]
    for body, caption in re.findall(
        r"^```{toctree}\n(:hidden:\n:caption: (.*?)\n.*?)^```", START, re.MULTILINE | re.DOTALL
    )
}


def groups(page):
    """The pages that the tables of an index page link to, by the headings above them."""
    sections = re.split(r"^## (.+)\n", page.read_text(), flags=re.MULTILINE)[1:]
    return {
        heading: re.findall(r"\| \[[^]]+\]\(([^)]+)\.md\) \|$", body, re.MULTILINE)
        for heading, body in zip(sections[::2], sections[1::2], strict=True)
    }


def test_how_to_pages_are_grouped_and_ordered_as_on_their_index_page():
    shown = {name.removeprefix("How-to: "): pages for name, pages in TOCTREES.items() if name.startswith("How-to: ")}
    first = next(iter(shown.values()))
    assert first.pop(0) == "how_to/index"
    listed = groups(DOCS / "how_to" / "index.md")
    assert [name.lower() for name in shown] == [name.lower() for name in listed]
    relative = [[page.removeprefix("how_to/") for page in pages] for pages in shown.values()]
    assert relative == [[page.removeprefix("../") for page in pages] for pages in listed.values()]
    every = {path.stem for path in (DOCS / "how_to").glob("*.md")} - {"index"}
    assert every == {page for pages in relative for page in pages} - {"migrating"}


def test_concepts_are_ordered_as_on_their_index_page():
    listed = re.findall(r"^\| \[[^]]+\]\((\w+)\.md\)", (DOCS / "concepts" / "index.md").read_text(), re.MULTILINE)
    assert TOCTREES["Concepts"] == ["concepts/index", *(f"concepts/{page}" for page in listed)]
    assert {*listed} == {path.stem for path in (DOCS / "concepts").glob("*.md")} - {"index"}


@pytest.mark.parametrize("word", ["LoRA", "Multi-host data", "Mixed precision"])
def test_the_navigation_has_these_words(word):
    titles = [
        (DOCS / f"{page}.md").read_text().partition("\n")[0]
        for pages in TOCTREES.values()
        for page in pages
        if (DOCS / f"{page}.md").exists() and "generated" not in page
    ]
    assert f"# {word}" in titles


def test_the_start_page_has_the_ten_lines_of_the_readme():
    texts = (START, (DOCS.parent / "README.md").read_text(), (DOCS / "start" / "ten_lines.md").read_text())
    first, *others = [re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0] for text in texts]
    assert others == [first] * 2 and len(first.splitlines()) == 10
