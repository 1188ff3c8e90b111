"""A comparison and its explanations as JSON."""

from __future__ import annotations

import json

from compaction.policies.comparison import explanations_to_json
from tests.policies.made import AS_OF_MS, POLICIES, comparison, failed, log


def test_the_document_has_every_figure() -> None:
    document = json.loads(comparison(log("a-b-7", 100), failed("c-0", "broken")).to_json())
    assert (document["schema_version"], document["dry_run"], document["status"]) == (1, True, "failed")
    assert (document["as_of_ms"], document["places"], len(document["age_bounds_ms"])) == (AS_OF_MS, 50, 7)
    assert [policy["name"] for policy in document["policies"]] == list(POLICIES)
    assert document["policies"][0]["logs"]["cleaned"] == 1
    first, second = document["logs"]
    assert (first["topic"], first["partition"], first["before"]["bytes"]) == ("a-b", 7, 100_000)
    assert first["policies"][0]["after"]["records"] == 500
    assert first["policies"][0]["run"]["status"] == "cleaned"
    assert first["policies"][0]["broker_rounds"] == 2
    assert first["keys"]["repetition"][2] == {"at_least": 5, "at_most": 8, "keys": 100, "records": 500}
    assert (second["error"], second["policies"]) == ("broken", [])


def test_explanations_have_the_conditions_of_each_policy() -> None:
    document = json.loads(explanations_to_json([log("a-0", 1)], 5))
    assert (document["as_of_ms"], document["logs"][0]["policies"][0]["status"]) == (5, "cleaned")
    assert len(document["logs"][0]["policies"][0]["why"]) == 2
