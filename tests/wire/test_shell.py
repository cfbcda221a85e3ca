"""The shell by itself: no loop, no network. Its host is a list of what it was asked for."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from tests.wire.test_node import GRAPH

from hams_protocol.effects import Effect, Send, Stop
from hams_protocol.events import (
    Event,
    Late,
    Member,
    MembersChanged,
    PeerDown,
    PeerUp,
    Received,
    Tick,
    TopologyLearnt,
)
from hams_protocol.knowledge import Knowledge
from hams_protocol.messages import AskTopology, Completion, Heartbeat, Message, StateCopy, Suspect
from hams_protocol.topology import Topology
from hams_wire.shell import FOREVER, Shell, break_report_after_s, network_silence_s

SUSPECT_S = 0.15
OTHERS = (
    Member("a-2", "a", ""),
    Member("b-1", "b", ""),
    Member("m-1", "manager", ""),
    Member("m-2", "manager", ""),
)


class Scripted:
    """A machine that answers each event as it is told to."""

    def __init__(self, answer: Callable[[Event], list[Effect]] = lambda event: []) -> None:
        self.knowledge = Knowledge(GRAPH)
        self.events: list[Event] = []
        self.due = FOREVER
        self._answer = answer

    def step(self, event: Event, now: float) -> list[Effect]:
        self.events.append(event)
        if isinstance(event, TopologyLearnt):
            self.knowledge.learn(event.topology, event.revision)
        if isinstance(event, Tick):
            self.due = FOREVER
        return self._answer(event)

    def deadline(self) -> float:
        return self.due


class Host:
    """Time that the test sets; everybody is connected and well unless it says otherwise."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sent: list[tuple[str, Message]] = []
        self.performed: list[Effect] = []
        self.turns = 0
        self.heard: dict[str, float] = {}
        self.unacknowledged: dict[str, float] = {}
        self.broken_off: list[str] = []
        self.down: set[str] = set()

    def now(self) -> float:
        return self.time

    def turn_soon(self) -> None:
        self.turns += 1

    def send(self, peer: str, message: Message) -> None:
        self.sent.append((peer, message))

    def perform(self, effect: Effect, now: float) -> None:
        self.performed.append(effect)

    def send_heartbeats(self, peers: Iterable[str], heartbeat: Heartbeat) -> None:
        self.sent += [(peer, heartbeat) for peer in peers if peer not in self.down]

    def is_up(self, peer: str) -> bool:
        return peer not in self.down

    def heard_at(self, peer: str) -> float | None:
        return self.heard.get(peer, self.time)

    def unacknowledged_s(self, peer: str) -> float:
        return self.unacknowledged.get(peer, 0.0)

    def break_off(self, peer: str) -> None:
        self.broken_off.append(peer)

    def stepped(self, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        pass


def shell_of(machine: Any = None, of: str = "a") -> tuple[Shell, Any, Host]:
    machine, host = machine or Scripted(), Host()
    shell = Shell(machine, "a-1" if of == "a" else "m-2", of, host, SUSPECT_S)
    shell.feed(MembersChanged(OTHERS))
    for member in OTHERS:
        shell.feed(PeerUp(member.instance))
    shell.turn()
    machine.events.clear()
    return shell, machine, host


def beats(shell: Shell, host: Host, count: int) -> None:
    for _ in range(count):
        host.time = max(host.time, shell.beat())
        shell.turn()


def test_a_turn_takes_events_in_their_order_and_those_that_they_cause_here_behind_them():
    ask = Send("a-1", AskTopology(3))
    shell, machine, host = shell_of(Scripted(lambda event: [ask] if isinstance(event, Tick) else []))
    host.turns = 0
    shell.feed(Tick())
    shell.feed(PeerDown("b-1"))
    assert host.turns == 1, "one turn for both"
    shell.turn()
    assert machine.events == [Tick(), PeerDown("b-1"), Received("a-1", AskTopology(3))]


def test_nothing_is_done_behind_the_end():
    stop, ask = Stop("over"), Send("b-1", AskTopology(3))
    shell, machine, host = shell_of(Scripted(lambda event: [stop, ask] if event == Tick() else []))

    def perform(effect: Effect, now: float) -> None:
        shell.stopped = True

    host.perform = perform  # type: ignore[method-assign]
    shell.feed(Tick())
    shell.feed(Tick())
    shell.turn()
    assert (len(machine.events), host.sent) == (1, [])


def test_a_heartbeat_that_says_nothing_new_is_only_a_sign_of_life():
    shell, machine, _ = shell_of()
    shell.feed(TopologyLearnt(Topology(generation=4), 1))
    shell.turn()
    for generation in (4, 4, 4):
        shell.feed(Received("b-1", Heartbeat(generation)))
    shell.turn()
    assert [event for event in machine.events if isinstance(event, Received)] == [
        Received("b-1", Heartbeat(4))
    ]


@pytest.mark.parametrize("since", [PeerUp("b-1"), MembersChanged(OTHERS)])
def test_it_is_told_again_after_what_makes_machines_forget_it(since):
    shell, machine, _ = shell_of()
    shell.feed(TopologyLearnt(Topology(generation=4), 1))
    for event in (Received("b-1", Heartbeat(4)), since, Received("b-1", Heartbeat(4))):
        shell.feed(event)
    shell.turn()
    assert machine.events.count(Received("b-1", Heartbeat(4))) == 2


def test_a_newer_generation_is_told_each_time_until_the_machine_knows_it():
    shell, machine, _ = shell_of()
    for _ in range(2):
        shell.feed(Received("b-1", Heartbeat(7)))
    shell.turn()
    assert machine.events == [Received("b-1", Heartbeat(7))] * 2


def test_a_heartbeat_goes_to_whom_nothing_else_was_sent():
    shell, _, host = shell_of(
        Scripted(lambda event: [Send("b-1", AskTopology(0))] if event == Tick() else [])
    )
    shell.feed(Tick())
    shell.turn()
    host.sent.clear()
    shell.beat()
    assert [peer for peer, _ in host.sent] == ["a-2", "m-1", "m-2"]
    host.sent.clear()
    shell.beat()
    assert [peer for peer, _ in host.sent] == ["a-2", "b-1", "m-1", "m-2"]


def test_a_copy_of_a_state_is_no_sign_of_life_for_it_may_be_held_back():
    copy = StateCopy("a", 1, 2, (), Completion(()), "c")
    shell, _, host = shell_of(Scripted(lambda event: [Send("b-1", copy)] if event == Tick() else []))
    shell.feed(Tick())
    shell.turn()
    shell.beat()
    assert [message for peer, message in host.sent if peer == "b-1"] == [copy, Heartbeat(0)]


def test_a_silent_peer_is_told_to_the_managers_once():
    shell, _, host = shell_of()
    beats(shell, host, 3)
    host.heard["b-1"] = host.time
    beats(shell, host, 10)
    suspected = [(peer, message.suspect) for peer, message in host.sent if isinstance(message, Suspect)]
    assert suspected == [("m-1", "b-1"), ("m-2", "b-1")]


def test_a_manager_tells_its_own_machine():
    shell, machine, host = shell_of(of="manager")
    beats(shell, host, 3)
    host.heard["b-1"] = host.time
    beats(shell, host, 10)
    own = [event for event in machine.events if isinstance(event, Received) and event.sender == "m-2"]
    assert [event.message.suspect for event in own] == ["b-1"]


def test_a_connection_over_which_nothing_passes_is_broken_off_and_one_to_a_slow_process_is_not():
    shell, _, host = shell_of()
    beats(shell, host, 3)
    host.heard = {"b-1": host.time, "a-2": host.time}
    host.unacknowledged["b-1"] = network_silence_s + 0.1
    host.unacknowledged["m-1"] = network_silence_s + 0.1
    beats(shell, host, 6)
    assert not host.broken_off, "it has been silent for 0.3 s only"
    beats(shell, host, 6)
    assert set(host.broken_off) == {"b-1"}, "a-2's kernel answers, and m-1 is heard"


def test_a_broken_connection_is_reported_after_a_while_unless_it_stands_again():
    shell, _, host = shell_of()
    for peer in ("a-2", "b-1"):
        shell.feed(PeerDown(peer))
    shell.turn()
    host.down = {"b-1"}
    assert shell.deadline() == pytest.approx(host.time + break_report_after_s)
    host.time += break_report_after_s + 0.001
    shell.wake()
    report = Suspect("b-1", "its connection broke")
    assert host.sent == [("m-1", report), ("m-2", report)]
    assert shell.deadline() == FOREVER


def test_a_tick_comes_when_it_is_due():
    shell, machine, host = shell_of()
    machine.due = host.time + 0.5
    assert shell.deadline() == machine.due
    shell.wake()
    assert not machine.events
    host.time += 0.5
    shell.wake()
    assert machine.events == [Tick()]


def test_a_machine_is_asked_for_its_deadline_once_after_each_step():
    shell, machine, host = shell_of()
    machine.due = host.time + 0.5
    asked = []
    machine.deadline = lambda: asked.append(machine.due) or machine.due
    for _ in range(2):
        shell.deadline()
        shell.wake()
    assert asked == [host.time + 0.5]
    host.time += 0.5
    shell.wake()
    assert machine.events == [Tick()]
    assert shell.deadline() == FOREVER, "the step moved it"


def test_a_late_process_tells_its_machine_before_everything_that_has_piled_up():
    shell, machine, host = shell_of()
    beats(shell, host, 2)
    shell.feed(PeerDown("b-1"))
    host.time += 3.0
    shell.turn()
    assert isinstance(machine.events[0], Late)
    assert machine.events[0].by_s == pytest.approx(3.0, abs=0.1)
    assert machine.events[1] == PeerDown("b-1")


def test_a_shell_at_rest_is_not_late_and_misses_nobody():
    shell, machine, host = shell_of()
    beats(shell, host, 2)
    shell.rest()
    host.heard = {"b-1": host.time}
    host.time += 30.0
    shell.feed(Tick())
    shell.turn()
    assert machine.events == [Tick()]
    shell.beat()
    assert not [message for _, message in host.sent if isinstance(message, Suspect)]


def test_the_time_in_the_core_is_counted_by_a_clock_and_nothing_else():
    times = iter(range(0, 100, 2))
    machine, host = Scripted(lambda event: []), Host()
    shell = Shell(machine, "a-1", "a", host, SUSPECT_S, clock=lambda: float(next(times)))
    for _ in range(3):
        shell.feed(Tick())
    shell.turn()
    assert (shell.core.calls, shell.core.seconds) == (3, 6.0)
    measures_nothing, _, _ = shell_of()
    assert (measures_nothing.core.calls > 0, measures_nothing.core.seconds) == (True, 0.0)
