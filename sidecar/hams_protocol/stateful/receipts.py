"""What follows of a state where backups answer for what they have received (ADR 0013): which of its versions
are durable, and what a holder tells managers.

A version is durable if the whole ack set has received it, and every entry of its vector is stable or within
an end. Vectors are transitive, so the newest such version vouches for all before it, though a notice about
those may be lost.
"""

from hams_protocol.deps import others
from hams_protocol.knowledge import Knowledge, Status
from hams_protocol.messages import RetainedVersion
from hams_protocol.versions import VersionStore


def newest_durable(store: VersionStore, knowledge: Knowledge, own: str, stable: int) -> int:
    """The newest version of `own`, up to `stable`, of which it is known here that all it depends on is
    durable; -1 if that is known of none."""
    for version in reversed(store.versions):
        if (
            version.number <= stable
            and version.state is not None
            and knowledge.status(others(version.record.deps, own)) is Status.DURABLE
        ):
            return version.number
    return -1


def survivors(
    store: VersionStore, knowledge: Knowledge, own: str, durable: int
) -> tuple[RetainedVersion, ...]:
    """The versions that could be gone back to, newest first: no orphan, as far as is known here. What is
    `durable` depends on nothing that could be lost."""
    held: list[RetainedVersion] = []
    for version in reversed(store.versions):
        deps = () if version.number <= durable else others(version.record.deps, own)
        if version.state is not None and knowledge.status(deps) is not Status.ORPHAN:
            held.append(RetainedVersion(version.number, knowledge.prune(deps)))
    return tuple(held)
