"""A run as a table for people: conditions, then one line per instance."""

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hams_operator.graph_status import GraphStatus, InstanceStatus, said
from hams_protocol.wholeness import READY, REDUNDANT

_COLOURS = {
    "primary": "bold green",
    "active": "bold green",
    "backup": "cyan",
    "joining": "yellow",
    "standby": "dim",
}


def table(status: GraphStatus, *, hint: str = "") -> RenderableType:
    """The whole picture."""
    rows = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for heading in ("OPERATOR", "ROLE", "EPOCH", "VERSION", "ON TIME", "INSTANCE", "PROXY", "MODEL"):
        rows.add_column(
            heading,
            justify="left" if heading in ("OPERATOR", "ROLE", "INSTANCE") else "right",
            no_wrap=True,
        )
    last = ""
    for item in sorted(status.instances, key=_order):
        name = item.operator or {"frontend": "(frontend)", "manager": "(manager)"}[item.role]
        rows.add_row(
            Text("" if name == last else name, style="bold"),
            Text(_role(item), style=_COLOURS.get(item.role, "")),
            str(item.epoch) if item.epoch else "",
            "" if item.version is None else str(item.version),
            _on_time(item),
            item.id,
            _pid(item.proxy_pid),
            _pid(item.model_pid) if item.operator else "",
        )
        last = name
    parts: list[RenderableType] = [_headline(status), Text(""), rows]
    for failure in status.failures:
        parts.append(
            Text(
                f"\n{failure.process_named} keeps ending, last with {said(failure.exit_code)}:",
                style="bold red",
            )
        )
        parts += [Text(f"  {line}", style="red") for line in failure.log[-3:]]
    for loss in status.losses:
        rest = f"; {' and '.join(loss.downstream)} may hold more of it" if loss.downstream else ""
        parts.append(
            Text(
                f"\nthe state of {loss.operator} was lost: it began again in epoch {loss.epoch} from "
                f"version {loss.version}{rest}",
                style="bold yellow",
            )
        )
    parts += [Text(f"\n{item.sentence()}", style="bold yellow") for item in status.replaced]
    windows = [item.on_time.window_s for item in status.instances if item.on_time is not None]
    if windows:
        parts.append(
            Text(
                f"\nON TIME: answered within the deadline, of what was due in the last {max(windows):g} s",
                style="dim",
            )
        )
    if status.metrics:
        parts.append(Text(f"\nmetrics of all processes: {status.metrics}", style="dim"))
    parts += [Text(f"\n{warning}", style="bold yellow") for warning in status.warnings]
    if hint:
        parts.append(Text(f"\n{hint}", style="dim"))
    return Group(*parts)


def _headline(status: GraphStatus) -> Text:
    text = Text.assemble(
        (status.graph, "bold"), f"   {status.url}   gRPC {status.grpc}   generation {status.generation}\n"
    )
    for item in status.conditions:
        if item.type not in (READY, REDUNDANT):
            continue
        good = item.status == "True"
        text.append(f"{item.type} ", style="")
        text.append("yes" if good else "no", style="bold green" if good else "bold yellow")
        text.append("   " if good else f" ({item.message})   ")
    return text


def _on_time(item: InstanceStatus) -> str:
    """Rounded down: 100 % is all of it."""
    return "-" if item.on_time is None else f"{math.floor(1000 * item.on_time.share) / 10:g} %"


def _role(item: InstanceStatus) -> str:
    return "leader" if item.leader else "" if item.role in ("frontend", "manager") else item.role


def _order(item: InstanceStatus) -> tuple[int, str, int, str]:
    roles = ("primary", "active", "backup", "joining", "standby")
    kind = {"frontend": 1, "manager": 2}.get(item.role, 0)
    return kind, item.operator or "", roles.index(item.role) if item.role in roles else 0, item.id


def _pid(pid: int | None) -> str:
    return str(pid) if pid else "-"
