"""What a frontend maps for the bounds of its graph."""

import pytest

from hams_protocol.graph import FrontendSpec
from hams_sidecar.frontend_memory import frontend_arena_bytes

MiB = 1 << 20


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (FrontendSpec(), 1024),
        (FrontendSpec(shards=1, max_in_flight_bytes=MiB, max_request_bytes=MiB), 1024),
        (FrontendSpec(shards=8), 8 * (256 + 64) + 256),
        (FrontendSpec(max_in_flight_bytes=2048 * MiB, max_request_bytes=1536 * MiB), 3 * 2048 + 2 * 64),
    ],
)
def test_the_logs_of_all_shards_fit_and_what_clients_send(spec: FrontendSpec, expected: int) -> None:
    assert frontend_arena_bytes(spec) == expected * MiB
