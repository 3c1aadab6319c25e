"""Pages of the reference begin with a table of their names; config files have the words that a config writes."""

import re

import pytest

from docs.generate import api, names, schema
from keras_dist.config import DistributionConfig

PAGES = api.pages()
PACKAGES = [each for each in names.packages() if any(n.package == each and not n.is_alias for n in names.names())]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_page_begins_with_a_table_of_all_names_of_its_package(package):
    table, *_ = re.split(r"^\.\. (?:auto\w+|py:data):: ", PAGES[api.page_of(package)], maxsplit=1, flags=re.MULTILINE)
    rows = re.findall(r"^   \* - :py:obj:`(\S+) <(\S+)>`\n     - (.+)$", table, re.MULTILINE)
    own = {(each.name, each.full) for each in names.names() if each.package == package and not each.is_alias}
    assert {row[:2] for row in rows} == own
    assert all(re.search(r"\w", text) for *_, text in rows)


def test_strategies_stand_under_the_words_that_a_config_writes():
    page = schema.pages()["schema.md"]
    titles = re.findall(r"^## (.+)$", page, re.MULTILINE)
    strategies = re.findall(r'^`strategy = "(\w+)"`$', "\n".join(titles), re.MULTILINE)
    assert {*strategies} == {*DistributionConfig.by_name} >= {"tensor_parallel", "sequence_parallel", "spatial"}
    assert not re.search(r"\b[A-Z]\w+Config\b|^## [A-Z]\w+$", page, re.MULTILINE)
    for section in page.split("\n## ")[1:]:
        assert all(re.search(r"\w.*\|$", row) for row in re.findall(r"^\| `\w+` \|.*?\| (.*)$", section, re.MULTILINE))
