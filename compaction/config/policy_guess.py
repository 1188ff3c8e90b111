"""Whether the ``cleanup.policy`` in effect for a topic is known, or a guess on which nothing may be deleted.

The policy is known if

1. a source for this topic sets it: ``--policy``, ``--set``, TOML ``[topics."name"]``, the topic's configuration in the metadata
   log, or what a broker creates an internal topic with; or
2. the metadata log has the topic without a policy, so that the broker's default is in effect, and that default is known: TOML
   ``[broker]`` or the broker's configuration in the metadata log sets ``log.cleanup.policy``, or the broker's
   ``server.properties`` is given, whether it sets the policy or not.

Anything else is a guess. A broker's default does not decide for a topic that is in no metadata log: the topic may have its own
policy in a metadata log that was not given, or in ZooKeeper. Nor is the default known from a metadata log without
``server.properties``: that file may set ``log.cleanup.policy=compact``.

Kafka has no counterpart: a broker always knows its topics.
"""

from __future__ import annotations

from compaction.config.sources import Origin, Source

#: the note of a default that ``--assume-default-policy`` takes for known
ASSUMED = ", assumed by --assume-default-policy"
NO_METADATA_LOG = "no metadata log is in the directories of this call"

_OF_TOPIC = frozenset((Origin.POLICY, Origin.SET, Origin.TOML_TOPIC, Origin.METADATA, Origin.INTERNAL))
_TO_SAY = "--set cleanup.policy=... or --assume-default-policy"


def policy_guess(source: Source, *, unknown: str | None, has_properties: bool) -> str | None:
    """Why a policy is a guess, and what to do about it; ``None`` if it is known.

    :param source: of the policy in effect
    :param unknown: why the topic is in no metadata log; ``None`` if it is in one
    :param has_properties: a broker's ``server.properties`` was given
    """
    if source.origin in _OF_TOPIC:
        return None
    if unknown is not None:
        ways = f"give the cluster's metadata log by --metadata DIR, or the policy by --config (TOML, topic table), {_TO_SAY}"
        return f"cleanup.policy is unknown: {unknown}; {ways}"
    if source.origin is not Origin.DEFAULT or has_properties:
        return None
    why = "the topic has none of its own, and the broker's default may be set in its server.properties"
    return f"cleanup.policy is unknown: {why}; give that file by --config, or the policy by {_TO_SAY}"
