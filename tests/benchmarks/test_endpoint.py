"""Every server that `benchmarks/endpoint.py` measures answers."""

import pytest

from benchmarks import endpoint


@pytest.mark.process
def test_all_servers_answer_in_both_sizes_with_one_client_and_with_many() -> None:
    result = endpoint.run(0.3, profile=False)
    rows = result["rows"]
    assert isinstance(rows, list)
    asked = {(row["server"], row["bytes"], row["clients"]) for row in rows if row["per_s"] > 0}
    assert asked == {
        (server, size, clients)
        for server in endpoint.SERVERS
        for size in endpoint.SIZES_BYTES
        for clients in endpoint.CLIENTS
    }
