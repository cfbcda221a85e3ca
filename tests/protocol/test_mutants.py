"""The registry of protocol bugs, and that none of them can be on by accident."""

import re
from pathlib import Path

import hams_protocol
from hams_protocol import mutants

SOURCES = sorted(Path(hams_protocol.__file__).parent.rglob("*.py"))


def test_every_mutant_stands_at_a_rule_and_every_rule_left_out_has_a_name():
    used = {
        name for path in SOURCES for name in re.findall(r'mutants\.on\(\s*"([^"]+)"\s*\)', path.read_text())
    }
    assert used == set(mutants.REGISTRY)


def test_there_are_mutants_over_the_whole_core():
    assert len(mutants.REGISTRY) >= 35
    modules = {path.stem for path in SOURCES if "mutants.on(" in path.read_text()}
    assert {
        "primary",
        "backup",
        "followers",
        "vertex",
        "joins",
        "outbox",
        "knowledge",
        "poison",
        "attempt",
        "assign",
        "owner",
    } <= modules | {"primary"}


def test_every_mutant_names_the_section_whose_rule_it_leaves_out():
    assert not [name for name, rule in mutants.REGISTRY.items() if "(section" not in rule]


def test_none_is_on_by_itself():
    assert mutants.active == frozenset()
    assert not any(mutants.on(name) for name in mutants.REGISTRY)
