"""Machines of the core, wired by hand (kit.py): events in, effects out."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def mutant() -> Iterator[Callable[[str], None]]:
    """Switches a named protocol bug on for the rest of the test."""
    from hams_protocol import mutants

    def switch(name: str) -> None:
        assert name in mutants.REGISTRY
        mutants.active = frozenset({name})

    yield switch
    mutants.active = frozenset()
