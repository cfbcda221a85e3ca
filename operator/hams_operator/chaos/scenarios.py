"""The scenarios, and their catalogue. Each is what is done to a graph while it is under load; the judge
stands outside.

After each, except where the entry says `loses`, every request has one reply, states are what the requests
made of them, and no request failed.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hams_operator.chaos.port import ACTIVE, BACKUP, FRONTEND, MANAGER, PRIMARY, Run

OPERATOR, NODE, CONTROLLER = (
    "deletes pods of the graph",
    "drains a node of the graph's pods",
    "stops or deletes controllers",
)
ETCD = "deletes a member of etcd, and a pod of the graph"


@dataclass(frozen=True, slots=True)
class Aim:
    """What to hit, and how often. `operator` "": the first that keeps state, else the first; where every role
    is hit, the first without state as well. `role` "": the scenario's own choice, or all of them.

    `duration_s`: of a scenario that goes on for a time, with a deletion every `every_s`; `image`: what a
    model is upgraded to.
    """

    operator: str = ""
    role: str = ""
    times: int = 2
    duration_s: float = 60.0
    every_s: float = 5.0
    seed: int = 14
    image: str = ""


@dataclass(frozen=True, slots=True)
class ChaosScenario:
    """A row of docs/faults.md, or a part of one. `loses`: it may lose a state, so it is for graphs that
    may."""

    id: str
    name: str
    does: str
    touches: str
    strike: Callable[[Run, Aim], None]
    loses: bool = False


def chosen(run: Run, aim: Aim) -> str:
    """The operator that is meant. Raises ValueError for one that there is not."""
    if not aim.operator:
        return next((name for name, stateful in run.operators.items() if stateful), next(iter(run.operators)))
    if aim.operator not in (*run.operators, FRONTEND, MANAGER):
        raise ValueError(
            f'no operator "{aim.operator}"; there are {", ".join((*run.operators, FRONTEND, MANAGER))}'
        )
    return aim.operator


def modelled(run: Run, aim: Aim) -> str:
    """The operator that is meant, which has to be one: frontends and managers have no model. Raises
    ValueError."""
    operator = chosen(run, aim)
    if operator not in run.operators:
        raise ValueError(
            f"{operator} has no model: this scenario is about operators: {', '.join(run.operators)}"
        )
    return operator


def targets(run: Run, aim: Aim) -> Iterator[tuple[str, str]]:
    """Operator and role of what is hit, one after another: each role that there is, unless an operator or a
    role is named."""
    operator = chosen(run, aim)
    instances = _of(run, operator)
    if not aim.operator:
        without_state = next(
            (name for name, keeps in run.operators.items() if not keeps and name != operator), None
        )
        if run.operators[operator] and without_state is not None:
            instances += _of(run, without_state)
        instances += [(FRONTEND, FRONTEND), (MANAGER, MANAGER)]
    if aim.role and aim.role not in [role for _, role in instances]:
        raise ValueError(
            f'{aim.operator or "the graph"} has no role "{aim.role}"; there are '
            f"{', '.join(role for _, role in instances)}"
        )
    yield from (target for target in instances if aim.role in ("", target[1]))


def _of(run: Run, operator: str) -> list[tuple[str, str]]:
    """An operator with each of its roles."""
    roles = (
        (operator,)
        if operator in (FRONTEND, MANAGER)
        else (PRIMARY, BACKUP)
        if run.operators[operator]
        else (ACTIVE,)
    )
    return [(operator, role) for role in roles]


def stateful(run: Run, aim: Aim) -> str:
    """The operator that is meant, which has to keep state. Raises ValueError."""
    operator = chosen(run, aim)
    if not run.operators.get(operator, False):
        raise ValueError(f"{operator} keeps no state: this scenario is about one that does")
    return operator


# -- pods ----------------------------------------------------------------------------------------------------


def deleted(run: Run, aim: Aim, *, force: bool = False) -> None:
    """F11: a pod of each role goes in order, and the graph is whole again before the next one."""
    for operator, role in targets(run, aim):
        for _ in range(aim.times):
            run.delete(run.pod_of(operator, role), force=force)
            run.changed()
            run.redundant()


def forced(run: Run, aim: Aim) -> None:
    """F12: the same by force; mostly it still hands over. A process may outlive its pod for seconds: what it
    says is refused."""
    deleted(run, aim, force=True)


def all_replicas(run: Run, aim: Aim) -> None:
    """F13: every pod of an operator with state, by force, at once: no replica is left. It ends when the graph
    is whole, or waits for a person."""
    operator = stateful(run, aim)
    for pod in run.pods_of(operator):
        run.delete(pod, force=True)
    run.changed()
    run.redundant()


def at_random(run: Run, aim: Aim) -> None:
    """F14: any pod every few seconds, seven in ten by force, never the last member in sync of a set; the
    graph need not be whole in between."""
    seeded = random.Random(aim.seed)
    end = time.monotonic() + aim.duration_s
    while (began := time.monotonic()) < end:
        spare = run.spare_pods()
        if spare:
            run.delete(seeded.choice(sorted(spare)), force=seeded.random() < 0.7)
        run.stalled(max(0.0, aim.every_s - (time.monotonic() - began)))
    run.redundant()


def successor_dies(run: Run, aim: Aim) -> None:
    """F33: a primary goes by force, and as soon as its backup has the role, that one as well, before a fresh
    one is in sync."""
    operator = stateful(run, aim)
    epoch = run.epoch_of(operator)
    run.delete(run.pod_of(operator, PRIMARY), force=True)
    run.moved(operator, epoch)
    run.delete(run.pod_of(operator, PRIMARY), force=True)
    run.changed()
    run.redundant()


# -- nodes ---------------------------------------------------------------------------------------------------


def drained(run: Run, aim: Aim) -> None:
    """F15: the node of a primary is drained; budgets hold evictions up until states are in sync elsewhere."""
    operator, role = next(targets(run, aim))
    node = run.node_of(run.pod_of(operator, role))
    try:
        run.drain(node)
        run.redundant()
    finally:
        run.undrain(node)


# -- controllers ---------------------------------------------------------------------------------------------


def controllers_deleted(run: Run, aim: Aim) -> None:
    """F11, F12: nothing that answers requests notices."""
    for force in (False, True):
        run.delete_controllers(force=force)
        run.answered(50)


def without_controllers(run: Run, aim: Aim) -> None:
    """F30: a primary goes by force while no controller runs: managers fail over, and Kubernetes makes the
    fresh pod."""
    operator = stateful(run, aim)
    try:
        run.stop_controllers()
        run.delete(run.pod_of(operator, PRIMARY), force=True)
        run.changed()
        run.answered(50)
    finally:
        run.start_controllers()
    run.redundant()


def controllers_killed_in_a_change(run: Run, aim: Aim) -> None:
    """F31: an operator's pods are replaced while controllers are killed again and again: the change is
    finished, once."""
    operator = modelled(run, aim)
    run.change_model(operator)
    for _ in range(2 * aim.times):
        run.delete_controllers(force=True)
        run.stalled(aim.every_s / 2)
    run.replaced(operator)
    run.redundant()


# -- etcd ----------------------------------------------------------------------------------------------------


def etcd_member_lost(run: Run, aim: Aim) -> None:
    """F27: a member of etcd and a primary go by force at once: the others serve on, and the one that is back
    finds its data again."""
    # asked before: the API server may be connected with the member that goes
    primary = run.pod_of(stateful(run, aim), PRIMARY)
    run.lose_etcd_member()
    run.delete(primary, force=True)
    run.changed()
    run.redundant()
    run.etcd_whole()


# -- upgrades ------------------------------------------------------------------------------------------------


def model_upgraded(run: Run, aim: Aim) -> None:
    """F34: an operator's image changes (without one, its pods are restarted): they are replaced one by one,
    roles are handed over."""
    for operator in (modelled(run, aim),) if aim.operator else tuple(run.operators):
        run.change_model(operator, aim.image)
        run.replaced(operator)
    run.redundant()


def upgraded_in_a_failover(run: Run, aim: Aim) -> None:
    """F34: a primary goes by force in the middle of its operator's upgrade."""
    operator = stateful(run, aim)
    run.change_model(operator, aim.image)
    run.delete(run.pod_of(operator, PRIMARY), force=True)
    run.replaced(operator)
    run.redundant()


CATALOGUE = (
    ChaosScenario(
        "F11", "graceful", "deletes a pod of each role, gracefully, one after another", OPERATOR, deleted
    ),
    ChaosScenario("F12", "force", "deletes a pod of each role by force, one after another", OPERATOR, forced),
    ChaosScenario(
        "F11",
        "controllers",
        "deletes the controllers, gracefully and by force",
        CONTROLLER,
        controllers_deleted,
    ),
    ChaosScenario(
        "F13", "all-replicas", "deletes all replicas of a state by force", OPERATOR, all_replicas, loses=True
    ),
    ChaosScenario(
        "F14", "random", "deletes pods at random, never the last replica in sync", OPERATOR, at_random
    ),
    ChaosScenario("F15", "drain", "drains the node of a primary", NODE, drained),
    ChaosScenario(
        "F27", "etcd-member", "deletes a member of etcd and a primary by force", ETCD, etcd_member_lost
    ),
    ChaosScenario(
        "F30",
        "no-controller",
        "deletes a primary by force while no controller runs",
        CONTROLLER,
        without_controllers,
    ),
    ChaosScenario(
        "F31",
        "controller-storm",
        "kills controllers again and again while a model is replaced",
        CONTROLLER,
        controllers_killed_in_a_change,
    ),
    ChaosScenario(
        "F33",
        "successor",
        "deletes a primary, then the promoted backup before another is in sync",
        OPERATOR,
        successor_dies,
        loses=True,
    ),
    ChaosScenario("F34", "upgrade", "replaces models one operator after another", OPERATOR, model_upgraded),
    ChaosScenario(
        "F34",
        "upgrade-failover",
        "deletes a primary by force while its operator is replaced",
        OPERATOR,
        upgraded_in_a_failover,
    ),
)


def find(reference: str) -> ChaosScenario:
    """By `F14`, `random` or `F14/random`; an id alone means its first. Raises ValueError with those that
    there are."""
    row, _, name = reference.partition("/")
    for scenario in CATALOGUE:
        if (name and (scenario.id, scenario.name) == (row, name)) or (
            not name and row in (scenario.id, scenario.name)
        ):
            return scenario
    there = ", ".join(f"{scenario.id}/{scenario.name}" for scenario in CATALOGUE)
    raise ValueError(f'no scenario "{reference}"; there are {there}')
