"""``python -m tests.scenarios [FILE ...]``: Kafka's answers, written into the files of scenarios; by default into all."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.bench import Bench
from tests.kafka.gateway import shared_gateway
from tests.scenarios.language import HERE, files, scenarios, with_answers


def main(names: list[str]) -> None:
    """Cleans the logs of each file with Kafka, and writes what it leaves."""
    for name in names or files():
        found, file = scenarios(name), HERE / f"{name}.txt"
        with TemporaryDirectory() as place:
            rounds = Bench(shared_gateway(), Path(place), found).run()
        answers = {each: [rounds[each, number].answer for number in range(len(one.rounds))] for each, one in found.items()}
        file.write_text(with_answers(file.read_text(encoding="utf-8"), answers), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
