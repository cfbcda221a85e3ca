"""Ports for local runs: different, free, and not of the range that the kernel hands out."""

import socket
from pathlib import Path

import pytest

from hams_operator import limits
from hams_operator.local import ports


def test_they_differ_are_free_and_lie_below_the_ephemeral_range() -> None:
    found = ports.free_ports(8)
    assert len(set(found)) == 8
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(limits.port_lowest <= port < first for port in found)
    for port in found:
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
