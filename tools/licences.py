"""``python -m tools.licences``: the licences of the packages that an installed distribution needs, by their own metadata.

Complete, with what the packages themselves need, for this machine's Python. An environment that has only the wheel, as
``make release`` makes one, says what its users install.
"""

from __future__ import annotations

import argparse
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PROJECT = "kafka-log-compaction"
_CLASSIFIER = re.compile("License :: (?:OSI Approved :: )?(.+)")
#: the field may have the whole text
_LONGEST = 60


def needed(name: str, extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """The distributions that one needs, by name.

    :param extras: of this one
    :raises SystemExit: one is not installed
    """
    found: dict[str, Distribution] = {}
    todo, done = [(name, extras)], set[tuple[str, frozenset[str]]]()
    while todo:
        one = todo.pop()
        if one in done:
            continue
        done.add(one)
        try:
            found[one[0]] = distribution(one[0])
        except PackageNotFoundError as error:
            raise SystemExit(f"{one[0]} is not installed: run this in an environment with {name}") from error
        for text in found[one[0]].requires or ():
            requirement = Requirement(text)
            wanted = (requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in ("", *one[1]))
            if any(wanted):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    del found[name]
    return found


def licence(package: Distribution) -> str:
    """By the expression, the classifiers or the first line of the field, whichever there is."""
    metadata = package.metadata
    classified = filter(None, map(_CLASSIFIER.fullmatch, metadata.get_all("Classifier") or ()))
    field = (metadata.get("License") or "not stated").strip().partition("\n")[0]
    return metadata.get("License-Expression") or ", ".join(found[1] for found in classified) or field[:_LONGEST]


def main() -> None:
    """Prints a row for each package."""
    parser = argparse.ArgumentParser(prog="python -m tools.licences", description="Licences of the packages that one needs.")
    parser.add_argument("--extras", default="", help="comma-separated extras of the project, e.g. connect,encryption")
    extras = frozenset(filter(None, parser.parse_args().extras.split(",")))
    print("| package | version | licence |\n| --- | --- | --- |")
    for name, package in sorted(needed(_PROJECT, extras).items()):
        print(f"| {name} | {package.version} | {licence(package)} |")


if __name__ == "__main__":
    main()
