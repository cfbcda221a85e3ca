"""How long managers wait for an answer: as long as answers have lately taken, within bounds."""

import pytest
from kit import Rig, graph, of, op, rset, topo

from hams_protocol import limits
from hams_protocol.effects import Propose, Send
from hams_protocol.graph import FRONTEND
from hams_protocol.messages import Freeze, Health, Probe, ProbeAnswer, Suspect
from hams_protocol.recovery import ManagerMachine
from hams_protocol.recovery.patience import Patience

LEAST = 0.3


def test_fast_answers_never_shorten_the_timeout():
    patience = Patience()
    for step in range(100):
        patience.asked("a", step)
        patience.answered("a", step + 0.001)
    assert patience.timeout_s(LEAST, 100.0) == LEAST


def test_slow_answers_lengthen_it_and_that_fades():
    patience = Patience()
    for step in range(20):
        patience.asked("a", step)
        patience.answered("a", step + (0.1, 0.5)[step % 2])
    slow = patience.timeout_s(LEAST, 20.0)
    assert 0.5 < slow <= limits.patience_stretch_max * LEAST
    assert patience.timeout_s(LEAST, 20.0 + limits.patience_half_life_s) < slow
    assert patience.timeout_s(LEAST, 20.0 + 10 * limits.patience_half_life_s) == LEAST


def test_one_that_was_stopped_teaches_no_more_than_its_bound():
    patience = Patience()
    patience.asked("a", 0.0)
    patience.answered("a", 3600.0)
    assert patience.timeout_s(LEAST, 3600.0) == pytest.approx(limits.patience_stretch_max * LEAST)
    assert patience.timeout_s(LEAST, 3600.0 + 20.0) == LEAST


def test_a_late_answer_makes_the_next_probe_wait_longer():
    rig = Rig(ManagerMachine(graph(op("q", FRONTEND, stateful=True)), "m-1"))
    rig.members(m_1="manager", F_1="F", q_1="q", q_2="q")
    rig.learn(topo(1, rset("q", "q-1", "q-2")))

    def doubt():
        rig.get("F-1", Suspect("q-1", "silent"))
        return next(
            item.message.nonce
            for item in reversed(rig.all)
            if isinstance(item, Send) and isinstance(item.message, Probe)
        )

    nonce = doubt()
    rig.after(0.35)
    rig.get("q-1", ProbeAnswer(nonce, Health.HEALTHY, 1))
    rig.get("q-2", ProbeAnswer(nonce, Health.HEALTHY, 1))
    assert not of(rig.all, Propose)
    nonce = doubt()
    rig.get("q-2", ProbeAnswer(nonce, Health.HEALTHY, 1))
    rig.all.clear()
    rig.after(0.4)
    assert not of(rig.all, Freeze), "a manager that has seen an answer take 0.35 s waits longer than 0.3"
