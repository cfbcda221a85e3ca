"""Mutants are edits of the core's sources: each finds its text, changes a function, and leaves no trace."""

import importlib
import re
from pathlib import Path

import pytest

import hams_protocol
from hams_sim.mutants.catalogue import MUTANTS, OWN_CHECKS, switch_off, switch_on
from hams_sim.mutants.mutant import Edit, MutantError, Switch, edited, function_of


def codes(edits):
    return [
        function_of(importlib.import_module(f"hams_protocol.{edit.module}"), edit.function).__code__
        for edit in edits
    ]


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_changes_every_function_that_it_names_and_takes_that_back(name):
    before = codes(MUTANTS[name].edits)
    switch_on(name)
    try:
        changed = codes(MUTANTS[name].edits)
    finally:
        switch_off()
    for old, new in zip(before, changed, strict=True):
        assert (old.co_code, old.co_consts, old.co_names) != (new.co_code, new.co_consts, new.co_names)
    assert codes(MUTANTS[name].edits) == before


def test_only_one_mutant_is_on_at_a_time():
    first, second = MUTANTS["no-window"].edits, MUTANTS["no-fence"].edits
    before = codes(first)
    switch_on("no-window")
    switch_on("no-fence")
    try:
        assert codes(first) == before
        assert codes(second) != before
    finally:
        switch_off()


def test_the_cores_own_checks_are_left_out_with_every_mutant():
    before = codes(OWN_CHECKS)
    switch_on("unsticky-slots")
    try:
        assert all(one is not other for one, other in zip(before, codes(OWN_CHECKS), strict=True))
    finally:
        switch_off()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            Edit("vertex", "Vertex.deliver", "no such text", ""),
            "expected the text of a mutant once in Vertex.deliver of vertex, found it 0 times",
        ),
        (Edit("vertex", "Vertex.deliver", "return", "pass"), "found it"),
        (Edit("vertex", "Vertex.absent", "x", "y"), "expected a function Vertex.absent"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(edit, message):
    with pytest.raises(MutantError, match=message):
        Switch().on([edit])


def test_whole_lines_are_found_at_any_indentation():
    vertex = importlib.import_module("hams_protocol.vertex")
    source = edited(
        vertex,
        "Vertex._close",
        [
            Edit(
                "",
                "",
                "deps = self.knowledge.prune(self.joins.deps(unit, every=True))",
                "if True:\n    return []",
            )
        ],
    )
    assert "        if True:\n            return []\n" in source


def test_every_mutant_names_the_section_whose_rule_it_leaves_out():
    assert not [name for name, mutant in MUTANTS.items() if not re.match(r"[1-9]", mutant.section)]


def test_there_are_mutants_over_the_whole_core():
    modules = {edit.module.rpartition(".")[2] for mutant in MUTANTS.values() for edit in mutant.edits}
    wanted = "primary backup followers vertex joins outbox knowledge poison attempt assign owner durability"
    assert set(wanted.split()) <= modules


def test_the_core_knows_nothing_of_mutants():
    sources = Path(hams_protocol.__file__).parent.rglob("*.py")
    assert not [path.name for path in sources if "mutant" in path.read_text()]
