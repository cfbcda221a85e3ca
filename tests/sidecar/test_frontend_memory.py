"""What a frontend maps for the bounds of its graph."""

import pytest

from hams_protocol.graph import FrontendSpec
from hams_sidecar.frontend_memory import FrontendMemory, frontend_memory
from hams_sidecar.limits import sink_output_bytes_max

MiB = 1 << 20


def spec(shards: int, in_flight: int, kept: int) -> FrontendSpec:
    """Of so many MiB."""
    return FrontendSpec(
        shards=shards,
        max_in_flight_bytes=in_flight * MiB,
        max_request_bytes=in_flight * MiB,
        replies_kept_bytes=kept * MiB,
    )


@pytest.mark.parametrize(
    ("given", "nbytes", "reserve"),
    [
        (FrontendSpec(), 1024, 256),
        (spec(1, 1, 64), 1024, 256),
        (spec(8, 256, 64), 8 * (256 + 128) + 256, 576),
        (spec(2, 2048, 64), 3 * 2048 + 256, 1536),
        (spec(2, 256, 2048), 3 * 256 + 8192, 256),
        (spec(1, 16, 800), 256 + 16 + 1600, 256),
    ],
)
def test_the_logs_of_all_shards_fit_and_what_clients_send(
    given: FrontendSpec, nbytes: int, reserve: int
) -> None:
    assert frontend_memory(given) == FrontendMemory(nbytes * MiB, reserve * MiB)


@pytest.mark.parametrize("given", [FrontendSpec(), spec(1, 16, 800), spec(2, 256, 2048), spec(5, 1024, 64)])
def test_kept_replies_leave_room_for_requests_and_for_any_reply(given: FrontendSpec) -> None:
    room = frontend_memory(given)
    kept = 2 * given.shards * given.replies_kept_bytes
    assert room.nbytes - room.reserve_nbytes - kept >= given.max_in_flight_bytes
    assert room.reserve_nbytes >= sink_output_bytes_max
