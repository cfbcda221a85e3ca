"""Machines of the core, wired by hand (kit.py): events in, effects out."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "frontend")]


@pytest.fixture
def mutant() -> Iterator[Callable[[str], None]]:
    """Switches a named protocol bug on for the rest of the test."""
    from hams_sim.mutants.catalogue import switch_off, switch_on

    yield switch_on
    switch_off()
