"""Ports for local runs: different, free, and not of the range that the kernel hands out."""

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from hams_operator.local import ports
from hams_operator.local.ports import port_lowest


def test_they_differ_are_free_and_lie_below_the_ephemeral_range() -> None:
    result = ports.free_ports(8)
    assert len(set(result)) == 8
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port_lowest <= port < first for port in result)
    for port in result:
        with socket.socket() as probe:
            probe.bind((ports.HOST, port))


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        number = taken.getsockname()[1]
        draws = iter([number, number, 20_011, *range(20_012, 20_200)])
        monkeypatch.setattr(ports.random, "randrange", lambda _low, _high: next(draws))
        assert number not in ports.free_ports(1)


def test_where_none_is_free_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports.random, "randrange", lambda _low, _high: number)
        with pytest.raises(OSError, match="no 1 free ports between"):
            ports.free_ports(1)


def shared(port: int) -> socket.socket:
    """What a frontend does: listen on a port that it shares with others."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((ports.HOST, port))
    made.listen()
    return made


def test_a_claimed_port_is_shared_with_frontends_and_given_to_nobody_else() -> None:
    (held,) = ports.claim_free(1)
    port = held.getsockname()[1]
    with held, shared(port) as one, shared(port) as two:
        for _ in range(20):
            with socket.create_connection((ports.HOST, port), timeout=5):
                pass
        assert one.fileno() != two.fileno()
        with pytest.raises(OSError, match="Address already in use"):
            ports.claim(port)
        stranger = socket.socket()
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with stranger, pytest.raises(OSError, match="Address already in use"):
            stranger.bind((ports.HOST, port))


def test_a_claimed_port_takes_no_connection_itself() -> None:
    (held,) = ports.claim_free(1)
    with held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(held.getsockname(), timeout=5)


def test_a_port_is_claimed_again_while_connections_of_the_run_before_fade_out() -> None:
    (held,) = ports.claim_free(1)
    port = held.getsockname()[1]
    with held, shared(port) as frontend, socket.create_connection((ports.HOST, port), timeout=5) as client:
        frontend.accept()[0].close()  # who closes first keeps the connection in TIME_WAIT
        assert client.recv(1) == b""
    ports.claim(port).close()


def test_of_several_who_claim_a_port_at_once_one_gets_it() -> None:
    (drawn,) = ports.claim_free(1)
    port = drawn.getsockname()[1]
    drawn.close()
    for _ in range(50):
        got: list[socket.socket] = []
        barrier = threading.Barrier(4)

        def attempt(got: list[socket.socket] = got, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            with contextlib.suppress(OSError):
                got.append(ports.claim(port))

        threads = [threading.Thread(target=attempt) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for held in got:
            held.close()
        assert len(got) <= 1
