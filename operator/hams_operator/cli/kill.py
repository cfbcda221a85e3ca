"""`hams kill`: chaos by hand."""

import random
import sys

from hams_operator.cli.output import Output, complain, print_json
from hams_operator.cli.runs import Runs, Target, on_runs
from hams_operator.graph_status import GraphStatus, InstanceStatus

SIGNALS = ("KILL", "STOP", "CONT", "TERM")
PROCESSES = ("model", "proxy", "both")
ROLES = ("primary", "backup", "joining", "active", "standby")


def kill(
    where: Target,
    target: str | None,
    graph: str | None,
    role: str | None,
    leader: bool,
    instance: str | None,
    process: str,
    number: str,
    output: Output,
) -> int:
    """Send a signal to an instance's processes and say which."""
    number = number.removeprefix("SIG")
    for option, allowed, value in (
        ("signal", SIGNALS, number),
        ("process", PROCESSES, process),
        ("role", ROLES, role),
    ):
        if value is not None and value not in allowed:
            complain(f"--{option}: expected {', '.join(allowed)}, found {value}", 2)
    if target is None and instance is None:
        complain("kill what? Expected an operator, frontend or manager, or --instance ID", 2)

    async def strike(runs: Runs) -> tuple[InstanceStatus, dict[str, int]]:
        status = await runs.status(graph)
        chosen = pick(status, target, role, leader, instance)
        return chosen, await runs.strike(status.graph, chosen, process, number)

    chosen, hit = on_runs(where, strike)
    if not hit:
        complain(f"{chosen.id} has no living {'process' if process == 'both' else process} any more")
    if output is Output.JSON:
        print_json(
            {
                "instance": chosen.id,
                "operator": chosen.operator,
                "role": chosen.role,
                "signal": number,
                "pids": hit,
            }
        )
    else:
        what = " and ".join(f"{name} {pid}" for name, pid in hit.items())
        place = (
            f"{chosen.role} of {chosen.operator}"
            if chosen.operator
            else chosen.role + (" (leader)" if chosen.leader else "")
        )
        sys.stdout.write(f"SIG{number}: {chosen.id}, {place}: {what}\n")
    return 0


def pick(
    status: GraphStatus, target: str | None, role: str | None, leader: bool, instance: str | None
) -> InstanceStatus:
    """The instance that is meant; of several one at random. Raises CommandError."""
    if target in ("frontend", "manager"):
        instances = [item for item in status.instances if item.operator is None and item.role == target]
        if role is not None:
            complain(f"--role is for operators; a {target} has none", 2)
    elif target is None:
        instances = list(status.instances)
    else:
        operators = sorted({item.operator for item in status.instances if item.operator})
        instances = [item for item in status.instances if item.operator == target]
        if not instances:
            complain(f'no instance of "{target}" runs; expected {", ".join(operators)}, frontend or manager')
    if instance is not None:
        named = [item for item in instances if item.id == instance]
        if not named:
            complain(
                f'no instance "{instance}"{f" of {target}" if target else ""} runs; these do: '
                f"{', '.join(item.id for item in instances)}"
            )
        return named[0]
    if leader:
        instances = [item for item in instances if item.leader]
    elif target not in ("frontend", "manager"):
        wanted = ("primary", "active") if role is None else (role,)
        living = instances
        instances = [item for item in instances if item.role in wanted]
        if not instances:
            complain(
                f"{target} has no {' or '.join(wanted)} now; it has: "
                f"{', '.join(f'{item.id} ({item.role})' for item in living)}"
            )
    if not instances:
        complain(f"no {'leader' if leader else target} runs now")
    return random.choice(instances)
