"""I1 and I4: a unit consumes what the edges of the graph carried to it, of its own request and lane, and
sends its value along them.

Present where a skip was, an input of another request, two values over one edge: whatever an operator computed
from that is an answer to no question.
"""

from hams_history.lines import ExecLine
from hams_history.tables import FEEDBACK, FRONTEND, OperatorTable, Tables, name_of


class AlongEdges:
    """Runs the checks when built."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.findings = tables.findings
        for table in tables.order:
            for position, line in table.execs:
                self._sent(table, position, line)
                sources = [self._source(table, position, line, value) for value in line.inputs]
                self._consumed(table, position, line, [source for source in sources if source is not None])
        self._left()

    def _wrong(self, table: OperatorTable, position: int, line: ExecLine, how: str, *see: int) -> None:
        what = f"{line.i} executed {name_of(line)} of {table.name}"
        self.findings.violation("I4", f"{what} {how}", position, *see)

    def _sent(self, table: OperatorTable, position: int, line: ExecLine) -> None:
        """The value goes along edges that there are, and is made of something."""
        beyond = [target for target in line.route if target not in table.targets]
        if beyond:
            self._wrong(table, position, line, f"and routed it to {beyond[0]}, to which it has no edge")
        if line.out is not None and not line.inputs:
            how = f"on skips only: value {line.out} was made of no value"
            self._wrong(table, position, line, how)

    def _source(self, table: OperatorTable, position: int, line: ExecLine, value: str) -> str | None:
        """The in-edge over which a value came, if it is known."""
        if value == line.req:
            if FRONTEND not in table.sources:
                self._wrong(
                    table, position, line, "on the request's input, but it has no edge from the frontend"
                )
                return None
            self._lane(table, position, line, value, (), FRONTEND)
            return FRONTEND
        if value in self.tables.logs:
            self.findings.violation(
                "I1",
                f"{line.i} executed {name_of(line)} of {table.name} on the input of another request, {value}",
                position,
                self.tables.logs[value][0][0],
            )
            return None
        produced = self.tables.producers.get(value)
        if produced is None:
            return None
        at, made = produced
        if table.name not in made.route:
            self.findings.violation(
                "I4",
                f"{table.name} executed {name_of(line)} on {value} of {made.op}, which had routed it to"
                f" {', '.join(made.route) or 'nobody'}: it should have got a skip",
                position,
                at,
            )
        else:
            self._lane(table, position, line, value, made.lane, made.op, at)
        return made.op

    def _lane(
        self,
        table: OperatorTable,
        position: int,
        line: ExecLine,
        value: str,
        lane: tuple[str, ...],
        source: str,
        *see: int,
    ) -> None:
        """Behind an Interleave each in-edge has a lane of its own; elsewhere a unit has that of its
        inputs."""
        wanted = (*lane, source) if table.join == "interleave" else lane
        if line.lane != wanted:
            self._wrong(
                table, position, line, f"on {value} of {source}, which belongs to lane {list(wanted)}", *see
            )

    def _consumed(self, table: OperatorTable, position: int, line: ExecLine, sources: list[str]) -> None:
        """One value over each edge, and under Interleave over one edge. A First has several where it refused
        them all. A Combine that passes its values over lacks one that it requires; that it ran without one is
        not judged, as it also makes an error where a value is lost."""
        if len(set(sources)) < len(sources):
            twice = next(source for source in sources if sources.count(source) > 1)
            self._wrong(table, position, line, f"on two values of {twice}: {', '.join(line.inputs)}")
        elif table.join == "interleave" and len(line.inputs) > 1:
            self._wrong(table, position, line, f"on {', '.join(line.inputs)}: an Interleave takes one value")
        if line.out is not None or not line.inputs or table.required is None:
            return
        if table.join != "combine" or set(sources).issuperset(table.required):
            self.findings.violation(
                "I4",
                f"{line.i} took {name_of(line)} of {table.name} for a skip, though every input that it "
                "requires brought a value:"
                f" {', '.join(line.inputs)}",
                position,
            )

    def _left(self) -> None:
        """Replies and requests that begin within the graph are made of values that were routed there."""
        for replies in self.tables.replies.values():
            for position, reply in replies:
                for value in reply.values:
                    self._routed(position, value, FRONTEND, f"{reply.i} released a reply of {reply.req} with")
        for logs in self.tables.logs.values():
            for position, log in logs:
                if log.source is not None:
                    self._routed(position, log.source, FEEDBACK, f"{log.i} logged {log.req}, fed back from")

    def _routed(self, position: int, value: str, target: str, what: str) -> None:
        produced = self.tables.producers.get(value)
        if produced is not None and target not in produced[1].route:
            self.findings.violation(
                "I4",
                f"{what} {value} of {produced[1].op}, which had routed it to"
                f" {', '.join(produced[1].route) or 'nobody'}",
                position,
                produced[0],
            )
