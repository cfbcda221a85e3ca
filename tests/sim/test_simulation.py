"""The simulator: what once failed holds, one seed is one history, the checks can fail, and every scenario of
the catalogue runs."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import hams_sim
from hams_protocol.graph import Mode
from hams_sim.arguments import CHOICES
from hams_sim.faults import MIXED
from hams_sim.late import LATE
from hams_sim.logs_and_losses import LOGS_AND_LOSSES
from hams_sim.moments import MOMENTS
from hams_sim.mutants.catalogue import MUTANTS
from hams_sim.mutants.hunt import FAULTS_FOR, HISTORIES_FOR, NOT_CAUGHT, SHAPES_FOR, catch, table
from hams_sim.receipts import RECEIPTS
from hams_sim.replacements import REPLACEMENTS
from hams_sim.runner import main
from hams_sim.scenarios import SCENARIOS
from hams_sim.shapes import SHAPES
from hams_sim.shrink import shrink
from hams_sim.simulate import Spec, make_plan
from hams_sim.variety import Variety
from hams_sim.waits import WAITS
from hams_sim.workers import Worker, run_all

CORPUS = json.loads((Path(hams_sim.__file__).parent / "corpus" / "seeds.json").read_text())


def test_what_once_failed_holds():
    specs = [
        Spec(
            item["seed"],
            item["shape"],
            item.get("fault", ""),
            mode=item.get("mode", ""),
            policy=item.get("policy", ""),
            early_replies=item.get("early_replies", False),
            by_receipt=item.get("by_receipt", False),
        )
        for item in CORPUS
    ]
    failed = [
        f"{outcome.spec.command()}: {outcome.message}" for outcome in run_all(specs, 2) if not outcome.ok
    ]
    assert not failed, "\n".join(failed)


def test_every_shape_holds_under_faults():
    specs = [Spec(7_000 + number, shape, MIXED) for number, shape in enumerate(sorted(SHAPES) * 2)]
    outcomes = list(run_all(specs, 2))
    assert len(outcomes) == len(specs)
    assert not [outcome.spec.command() for outcome in outcomes if not outcome.ok]
    assert all(outcome.calls >= 20 and outcome.fault_count >= 2 for outcome in outcomes)


def test_replies_that_are_logged_early_hold_too():
    shapes = ("pair", "fan-reply", "router", "feedback")
    specs = [
        Spec(1 + number, shapes[number % 4], fault, early_replies=True)
        for number, fault in enumerate(("mixed", "mixed", "reply-undone", "reply-undone") * 2)
    ]
    outcomes = list(run_all(specs, 2))
    assert not [outcome.spec.command() for outcome in outcomes if not outcome.ok]
    for reached in ("reply logged early", "reply logged again", "an early reply released by a new owner"):
        assert sum(outcome.coverage[reached] for outcome in outcomes), reached


def test_one_seed_is_one_history_in_every_process():
    spec = Spec(11, "diamond-combine")
    outcomes = []
    for _ in range(2):
        worker = Worker()
        outcomes.append(worker.run(spec))
        worker.close()
    assert outcomes[0].events == outcomes[1].events
    assert outcomes[0].coverage == outcomes[1].coverage
    assert outcomes[0].sim_s == outcomes[1].sim_s


def test_a_ctrl_c_is_for_who_runs_the_simulation_and_not_for_its_processes():
    spec, worker = Spec(11, "single"), Worker()
    assert worker.run(spec).ok
    worker._process.send_signal(signal.SIGINT)
    assert worker.run(spec).ok
    worker.close()


def test_lost_states_are_run_again_right_for_deterministic_models_and_others_are_found_guilty():
    shapes = ("single", "chain", "sandwich", "diamond-interleave")
    specs = [
        Spec(1 + number, shapes[number % len(shapes)], "kill", mode=Mode.LINEAGE_STASH.value)
        for number in range(12)
    ]
    outcomes = list(run_all(specs, 2))
    assert not [outcome.spec.command() for outcome in outcomes if not outcome.ok]
    assert sum(outcome.coverage["began again after a loss"] for outcome in outcomes) > 4
    guilty = list(run_all([replace(spec, random_models=True) for spec in specs], 2))
    assert {outcome.what for outcome in guilty} & {"I1", "I2", "I1+I2", "I1+I4"}


def test_where_backups_answer_for_what_they_have_received_an_end_may_go_back_and_nothing_is_lost():
    specs = [Spec(8_000 + number, shape, MIXED) for number, shape in enumerate(sorted(SHAPES))]
    specs += [Spec(5, "pair", "receding"), Spec(4, "chain", "receding-kept")]
    outcomes = list(run_all([replace(spec, by_receipt=True) for spec in specs], 2))
    assert not [outcome.spec.command() for outcome in outcomes if not outcome.ok]
    went_back = [outcome.spec.fault for outcome in outcomes if outcome.coverage["an end went back"]]
    assert {"receding", "receding-kept"} <= set(went_back)


@pytest.mark.parametrize("fault", sorted(SCENARIOS, key=lambda name: int(name[1:])))
def test_scenario(fault):
    scenario = SCENARIOS[fault]
    specs = [Spec(300 + number, shape, fault) for number, shape in enumerate(scenario.shapes)]
    failed = [
        f"{outcome.spec.command()}: {outcome.message}" for outcome in run_all(specs, 2) if not outcome.ok
    ]
    assert not failed, "\n".join(failed)


def test_every_moment_holds_without_a_mutant():
    specs = [
        Spec(400 + number, scene.shapes[0], name)
        for number, (name, scene) in enumerate(
            (MOMENTS | LATE | LOGS_AND_LOSSES | REPLACEMENTS | RECEIPTS | WAITS).items()
        )
    ]
    failed = [
        f"{outcome.spec.command()}: {outcome.message}" for outcome in run_all(specs, 2) if not outcome.ok
    ]
    assert not failed, "\n".join(failed)


def test_what_is_said_of_mutants_is_said_of_known_ones():
    for said in (FAULTS_FOR, SHAPES_FOR, HISTORIES_FOR, NOT_CAUGHT):
        assert set(said) <= set(MUTANTS)
    assert {fault for faults in FAULTS_FOR.values() for fault in faults} <= set(CHOICES)
    assert all(shape in SHAPES for shapes in SHAPES_FOR.values() for shape in shapes)


def test_the_table_of_mutants_has_a_row_for_each():
    rows = [
        {"mutant": name, "rule": one.rule, "section": one.section, "histories": 3, "caught": "I1"}
        for name, one in MUTANTS.items()
    ]
    rows[0]["caught"] = ""
    text = table(rows)
    assert text.count("| I1 | 3 |") == len(rows) - 1
    assert all(f"| {name} | " in text for name in MUTANTS)


@pytest.mark.parametrize(
    "mutant", ["durable-before-all", "apply-before-upstream-durable", "receipt-counts-as-apply"]
)
def test_a_protocol_bug_is_caught(mutant):
    assert mutant in MUTANTS
    _, outcome = catch(mutant, 60, 1, 2)
    assert outcome is not None


def test_a_failure_shrinks_to_one_that_still_fails():
    _, outcome = catch("durable-before-all", 60, 1, 2)
    assert outcome is not None
    worker = Worker(sources=True)
    smaller = shrink(outcome, lambda spec: worker.run(spec, "durable-before-all"))
    again = worker.run(smaller.spec, "durable-before-all")
    worker.close()
    assert again.what == outcome.what
    assert len(smaller.spec.drop_calls) > 0


def test_a_random_graph_has_lanes_that_fit():
    for seed in range(200):
        graph = make_plan(Spec(seed, "random")).graph
        for op in graph.data.operators:
            sources = [
                graph.operators[edge.source].lanes if edge.source != "F" else ((),) for edge in op.in_edges
            ]
            if op.join != "Interleave":
                assert all(lanes == op.lanes for lanes in sources)
            else:
                assert len(op.lanes) == sum(len(lanes) for lanes in sources)


@pytest.mark.parametrize("variety", list(Variety))
def test_a_mixed_history_has_faults_of_two_kinds_and_holds_whatever_it_is_about(variety):
    specs = []
    for seed in range(2_000):
        spec = Spec(seed, ("pair", "chain", "prism")[seed % 3], MIXED)
        plan = make_plan(spec)
        if plan.variety is variety and len(specs) < 6:
            assert len({fault.kind for fault in plan.faults}) >= 2
            specs.append(spec)
    assert len(specs) == 6
    failed = [
        f"{outcome.spec.command()}: {outcome.message}" for outcome in run_all(specs, 2) if not outcome.ok
    ]
    assert not failed, "\n".join(failed)


def test_a_long_run_goes_on_where_its_progress_file_says(tmp_path, capsys, monkeypatch):
    notes = tmp_path / "progress.jsonl"
    arguments = ["--histories", "3", "--shape", "single", "--jobs", "1", "--progress", str(notes)]
    assert main(arguments) == 0
    assert "3 histories" in capsys.readouterr().out
    assert json.loads(notes.read_text())["failures"] == []
    assert main(arguments) == 0
    assert "0 histories" in capsys.readouterr().out
    assert main([*arguments, "--seed", "9"]) == 0
    assert "3 histories" in capsys.readouterr().out
    for others in (["--mode", "Remus"], ["--policy", "distribution"]):
        assert main([*arguments, *others]) == 0
        assert "3 histories" in capsys.readouterr().out, "they are others"
    monkeypatch.setattr("hams_compiled.digest", lambda _: "another core")
    assert main(arguments) == 0
    assert "3 histories" in capsys.readouterr().out, "what an earlier core did proves nothing of this one"
