"""Sentences that readers must read twice, by their patterns: the counts may only go down.

`python -m tests.contracts.test_words` prints each sentence with its place; `make lint` runs it with `--check`.
"""

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]

BUDGET = 20
"""Largest number of banned patterns; lower it when it is reached."""

_IN_DOCSTRINGS = {"a noun clause for a verb": r'"""(What|How|Whose|Of|Those|That|As) '}
_IN_TEXT = {
    "those of, that of": r"\b(those|that) of\b",
    "is no, are no": r"\b(is|are) no\b",
    "tells": r"\b(tells?|told) (of|what|which|that|how|whether|by|apart)\b",
    "lies": r"\b(lies|lie)\b",
    "as of": r"\bas of `",
    "born": r"\b(born|birth)\b",
    "of its own": r"\bof its own\b",
    "goes on": r"\bgo(es)? on\b",
    "is to be": r"\bis to be\b",
    "has its say": r"\bhas its say\b",
    "likewise": r"\blikewise\b",
    "but for": r"\bbut for\b",
    "from the time on": r"\bfrom the time on\b",
}


def banned(text: str, is_python: bool) -> list[tuple[str, int, str]]:
    """Return name, line number and line of each banned pattern in the text of a file."""
    patterns = _IN_TEXT | _IN_DOCSTRINGS if is_python else _IN_TEXT
    return [
        (name, number, line.strip())
        for number, line in enumerate(text.splitlines(), 1)
        for name, pattern in patterns.items()
        for _ in re.finditer(pattern, line)
    ]


def in_project() -> list[tuple[str, str, int, str]]:
    """Return pattern, file, line number and line of each banned pattern in the package, README and docs."""
    files = [*sorted((ROOT / "keras_dist").rglob("*.py")), ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        (name, str(file.relative_to(ROOT)), number, line)
        for file in files
        if "generated" not in file.parts
        for name, number, line in banned(file.read_text(), file.suffix == ".py")
    ]


if __name__ == "__main__":
    found = in_project()
    if "--check" not in sys.argv:
        for name, file, number, line in found:
            print(f"{file}:{number}: {name}: {line}")
    for name, count in Counter(name for name, *_ in found).most_common():
        print(f"{count:5}  {name}")
    print(f"{len(found):5}  in all, of {BUDGET}")
    sys.exit(len(found) > BUDGET)
