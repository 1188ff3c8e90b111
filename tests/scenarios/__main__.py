"""``python -m tests.scenarios [FILE ...]``: Kafka's answers, written into the files of scenarios; by default into all."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.kafkas import by_kafka, cleaned_by
from tests.kafka.gateway import shared_gateway
from tests.kafka.jars import REFERENCE
from tests.scenarios.language import HERE, files, scenarios, with_answers
from tests.scenarios.runner import rounds_of


def main(names: list[str]) -> None:
    """Cleans the logs of each file with Kafka, and writes what it leaves."""
    for name in names or files():
        found, file = scenarios(name), HERE / f"{name}.txt"
        answers: dict[str, list[list[str]]] = {each: [] for each in found}
        for kind in sorted({(one.version, one.expires) for one in found.values()}):
            some = {each: one for each, one in found.items() if (one.version, one.expires) == kind}
            way = cleaned_by(shared_gateway(kind[0] or REFERENCE), expires=kind[1])
            with TemporaryDirectory() as place:
                for left in rounds_of(Path(place), some, way, by_kafka):
                    answers[left.name].append(left.answer)
        file.write_text(with_answers(file.read_text(encoding="utf-8"), answers), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
