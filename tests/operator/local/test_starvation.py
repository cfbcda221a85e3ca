"""What the kernel says of processes that wait for CPU."""

import os

import pytest

from hams_operator.local import starvation
from hams_operator.local.starvation import CpuWaits, waited_s


def test_of_a_process_that_runs_the_kernel_says_how_long_it_has_waited():
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this kernel does not count")
    waited = waited_s(os.getpid())
    assert waited is not None
    assert waited >= 0.0
    assert waited_s(2**22 + 1) is None, "no process has such an id"


def test_the_share_is_of_the_one_that_waited_longest_since_the_last_look(monkeypatch: pytest.MonkeyPatch):
    waited = {1: 10.0, 2: 3.0}
    monkeypatch.setattr(starvation, "waited_s", waited.get)
    waits = CpuWaits()
    assert waits.share((1, 2), 100.0) == 0.0, "nothing is known before the first look"
    waited |= {1: 10.1, 2: 3.4, 3: 50.0}
    assert waits.share((1, 2, 3), 100.5) == pytest.approx(0.8), "and of a process nothing before its first"
    assert waits.share((1, 2, 3), 101.0) == 0.0
    waited[3] = 99.0
    assert waits.share((3,), 101.5) == 1.0
    assert waits.share((), 102.0) == 0.0
