"""Frontend machines wired back to back by a deterministic network (frontend_net.py)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def mutant() -> Iterator[object]:
    """Switches a named protocol bug on for the rest of the test."""
    from hams_sim.mutants.catalogue import switch_off, switch_on

    yield switch_on
    switch_off()
