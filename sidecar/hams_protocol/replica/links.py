"""The connections of one instance that are broken, as far as it knows."""

from collections.abc import Container

from hams_protocol.ids import InstanceId


class Links:
    """`down`: the peers whose connection is broken, since when (seconds); at the address of the `refused`
    ones nobody listens; that to the ones that are `up` stands. A peer that was never reached is neither."""

    def __init__(self) -> None:
        self.down: dict[InstanceId, float] = {}
        self.refused: set[InstanceId] = set()
        self.up: set[InstanceId] = set()

    def broke(self, peer: InstanceId, refused: bool, now: float) -> None:
        """A connection broke, or could not be made."""
        self.down.setdefault(peer, now)
        self.up.discard(peer)
        if refused:
            self.refused.add(peer)

    def stands(self, peer: InstanceId) -> None:
        """A connection stands (again)."""
        self.down.pop(peer, None)
        self.refused.discard(peer)
        self.up.add(peer)

    def late(self, by_s: float, now: float) -> None:
        """This instance's own loop was late: news of connections may lie unread."""
        for peer, since in self.down.items():
            self.down[peer] = min(since + by_s, now)

    def forget(self, known: Container[InstanceId]) -> None:
        """Of peers that are not `known` any more nothing is remembered."""
        for peer in [peer for peer in self.down if peer not in known]:
            del self.down[peer]
            self.refused.discard(peer)
