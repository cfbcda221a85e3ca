"""What is durable, orphan, pending or unknown (section 1), and which requests are complete (section 5)."""

import pytest
from kit import R0, R1, R2, dep, graph, op, rset, table, topo, value

from hams_protocol.graph import FRONTEND, RecoverySpec, WhenUnprotected
from hams_protocol.ids import RequestId
from hams_protocol.knowledge import CompletionSet, Knowledge, Status
from hams_protocol.messages import Completion, Durable
from hams_protocol.topology import ReplicaSet


def knowledge(*sets, generation=1, block=False):
    data = graph(
        op("p", FRONTEND, to=("s",), stateful=True),
        op("s", "p", slots=2),
        recovery=RecoverySpec(when_unprotected=WhenUnprotected.BLOCK if block else WhenUnprotected.CONTINUE),
    )
    result = Knowledge(data)
    result.learn(topo(generation, *sets, table("s", ("s-1", 1), ("s-2", 1))), generation)
    return result


def test_a_state_is_pending_until_its_version_is_announced():
    k = knowledge(rset("p", "p-1"))
    assert k.status(dep("p", 1, 5)) is Status.PENDING
    assert k.announce(Durable(dep("p", 1, 5))) == ["p"]
    assert (k.status(dep("p", 1, 5)), k.status(dep("p", 1, 6))) == (Status.DURABLE, Status.PENDING)


def test_above_the_end_of_its_epoch_a_state_is_orphan_and_below_it_durable():
    k = knowledge(rset("p", "p-2", epoch=2, ends=((1, 9),)))
    assert (k.status(dep("p", 1, 9)), k.status(dep("p", 1, 10))) == (Status.DURABLE, Status.ORPHAN)


def test_an_epoch_above_the_known_one_is_unknown():
    assert knowledge(rset("p", "p-1")).status(dep("p", 2, 1)) is Status.UNKNOWN


def test_an_orphan_entry_is_the_worst_of_a_vector_whatever_else_is_unknown():
    k = knowledge(rset("p", "p-2", epoch=2, ends=((1, 9),)))
    assert k.status((*dep("p", 1, 9), *dep("q", 1, 1))) is Status.UNKNOWN
    assert k.status((*dep("p", 1, 10), *dep("q", 1, 1))) is Status.ORPHAN
    assert k.status((*dep("q", 1, 1), *dep("p", 1, 10))) is Status.ORPHAN


def test_an_end_that_a_later_topology_drops_is_not_forgotten():
    k = knowledge(rset("p", "p-2", epoch=2, ends=((1, 9),)))
    k.learn(topo(k.topology.generation + 1, rset("p", "p-3", epoch=3, ends=((2, 12),))), 7)
    assert (k.status(dep("p", 1, 9)), k.status(dep("p", 1, 10))) == (Status.DURABLE, Status.ORPHAN)
    assert k.status(dep("p", 2, 13)) is Status.ORPHAN


def test_an_epoch_whose_end_was_dropped_is_unknown():
    assert knowledge(rset("p", "p-3", epoch=3, ends=((2, 9),))).status(dep("p", 1, 3)) is Status.UNKNOWN


def test_what_was_lost_in_a_restart_is_not_undone_downstream():
    k = knowledge(ReplicaSet("p", 3, "p-3", ends=((1, 9), (2, 0)), restarted_in=3))
    assert k.status(dep("p", 2, 40)) is Status.DURABLE


def test_under_block_nothing_of_a_new_epoch_is_durable_before_its_primary_says_so():
    k = knowledge(rset("p", "p-2", epoch=2, ends=((1, 9),)), block=True)
    assert k.status(dep("p", 1, 5)) is Status.PENDING
    k.announce(Durable(dep("p", 2, 9)))
    assert k.status(dep("p", 1, 5)) is Status.DURABLE
    assert k.status(dep("p", 1, 10)) is Status.ORPHAN


def test_a_notice_that_comes_late_takes_nothing_back():
    k = knowledge(rset("p", "p-1"))
    k.announce(Durable(dep("p", 1, 9)))
    assert k.announce(Durable(dep("p", 1, 5))) == []
    assert k.status(dep("p", 1, 9)) is Status.DURABLE


def test_a_notice_of_an_epoch_not_yet_known_counts_once_it_is():
    k = knowledge(rset("p", "p-1"))
    k.announce(Durable(dep("p", 1, 9)))
    k.announce(Durable(dep("p", 2, 12)))
    assert k.status(dep("p", 1, 9)) is Status.DURABLE
    k.learn(topo(2, rset("p", "p-2", epoch=2, ends=((1, 11),))), 2)
    assert k.status(dep("p", 2, 12)) is Status.DURABLE


def test_an_older_topology_is_not_learnt():
    k = knowledge(rset("p", "p-2", epoch=2, ends=((1, 9),)), generation=5)
    assert not k.learn(topo(4, rset("p", "p-1")), 4)
    assert k.set_of("p").primary == "p-2"


def test_a_revision_heard_later_belongs_to_the_same_generation():
    k = knowledge(rset("p", "p-1"))
    k.learn(topo(2, rset("p", "p-1")), -1)
    assert k.revision == -1
    assert not k.learn(topo(2, rset("p", "p-1")), 77)
    assert k.revision == 77


def test_durable_entries_are_dropped_from_vectors():
    k = knowledge(rset("p", "p-2", epoch=2, ends=((1, 9),)))
    assert k.prune(dep("p", 1, 9)) == ()
    assert k.prune(dep("p", 2, 10)) == dep("p", 2, 10)


def test_a_token_is_handed_on_without_what_is_durable():
    k = knowledge(rset("p", "p-2", epoch=2, ends=((1, 9),)))
    assert k.pruned(value("p", R0, "p-1:1", dep("p", 1, 9))).deps == ()
    token = value("p", R0, "p-1:2", dep("p", 2, 10))
    assert k.pruned(token) is token


def test_a_fence_of_a_slot_never_goes_back():
    k = knowledge(rset("p", "p-1"))
    number = 0 if k.source_epoch("s", R0) and k.owner("s", R0)[0] == "s-1" else 1
    k.fence("s", number, 7)
    k.fence("s", number, 3)
    assert k.source_epoch("s", R0) == 7


def test_the_same_request_has_the_same_slot_whoever_owns_it():
    k = knowledge(rset("p", "p-1"))
    before = [k.owner("s", RequestId(0, n))[0] for n in range(20)]
    k.learn(topo(2, rset("p", "p-1"), table("s", ("s-9", 2), ("s-2", 1))), 2)
    after = [k.owner("s", RequestId(0, n))[0] for n in range(20)]
    assert after == ["s-9" if item == "s-1" else item for item in before]
    assert {"s-9", "s-2"} == set(after)


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("order", [(R0, R1, R2), (R2, R1, R0), (R1, R2, R0), (R2, R2, R0, R0, R1)])
def test_completions_become_a_watermark_in_any_order(order, one_by_one):
    done = CompletionSet()
    for request in order:
        if one_by_one:
            done.add_one(request)
            assert request in done
        else:
            done.add([request])
    assert done.watermark(0) == 3
    assert done.sparse_count(0) == 0
    assert R1 in done
    assert RequestId(0, 3) not in done


def test_completion_broadcasts_are_cumulative_and_never_forget():
    done = CompletionSet()
    assert done.learn(Completion(((0, 2, (5,)),)))
    assert not done.learn(Completion(((0, 1, ()),)))
    assert R1 in done
    assert RequestId(0, 5) in done
    assert RequestId(0, 4) not in done
    assert done.snapshot() == Completion(((0, 2, (5,)),))
