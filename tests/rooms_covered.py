"""Prints which share of each room tests run, lines and branches: `python -m tests.rooms_covered coverage.json`."""

import collections
import json
import pathlib
import sys


def shares(report: dict) -> dict[str, float]:
    """Return for each room, and for `all`, the percentage that ran, of what coverage.py has written as JSON."""
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for name, file in report["files"].items():
        totals = file["summary"]
        ran = totals["covered_lines"] + totals["covered_branches"]
        there = totals["num_statements"] + totals["num_branches"]
        room = pathlib.PurePath(name).parts[1]
        for one in (room.removesuffix(".py"), "all"):
            counts[one] = [counts[one][0] + ran, counts[one][1] + there]
    return {room: 100 * ran / there for room, (ran, there) in counts.items() if there}


if __name__ == "__main__":
    found = shares(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    for room, share in sorted(found.items(), key=lambda item: item[1]):
        print(f"{room:<20} {share:5.1f} %")
