"""Valid histories out of a seed, made without the protocol: what a right run could have recorded.

A test double, shipped because any checker of histories is only as good as the histories it was tried on:
batches, skips, lanes, feedback, failovers with roll-back of downstream states, moved slots with values
computed again. One global clock; nothing is ever lost. Mutate one line and a checker must see it
(tests/history).
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from hams_history.lines import (
    ApplyLine,
    CallLine,
    CompleteLine,
    DurableLine,
    ExecLine,
    FailoverLine,
    FaultLine,
    FinalLine,
    FinalOperator,
    GraphLine,
    HealLine,
    Line,
    LogLine,
    OperatorEntry,
    ReplyLine,
    RetLine,
)
from hams_history.once import chain_next

Lane = tuple[str, ...]
State = tuple[str, int, int]
"""(operator, epoch, version) that something depends on."""

SHAPES: dict[str, dict[str, tuple[str, str, str]]] = {
    "pair": {"p": ("stateful", "combine", "F"), "q": ("stateful", "combine", "p")},
    "sandwich": {
        "p": ("stateful", "combine", "F"),
        "s": ("stateless", "combine", "p"),
        "q": ("stateful", "combine", "s"),
    },
    "diamond": {
        "s": ("stateless", "combine", "F"),
        "p": ("stateful", "combine", "s"),
        "w": ("stateless", "combine", "s"),
        "q": ("stateful", "combine", "p w"),
    },
    "lanes": {
        "a": ("stateless", "combine", "F"),
        "p": ("stateful", "combine", "F"),
        "q": ("stateful", "interleave", "a p"),
    },
    "first": {
        "a": ("stateless", "combine", "F"),
        "p": ("stateful", "combine", "F"),
        "q": ("stateful", "first", "a p"),
    },
    "loop": {"s": ("stateless", "combine", "F"), "p": ("stateful", "combine", "s")},
}
"""Name -> operators in topological order: kind, join, inputs. The last one is the sink; in `loop` it also
feeds back."""


@dataclass(slots=True)
class _Token:
    """The output of one unit: value id (None: a skip), route, and every state it depends on."""

    value: str | None
    route: tuple[str, ...]
    deps: frozenset[State]


@dataclass(slots=True)
class _Unit:
    epoch: int
    seq: int
    version: int
    key: tuple[str, Lane]
    chain: str
    deps: frozenset[State]
    """Of the state after this unit, on other operators."""


@dataclass(slots=True)
class _Operator:
    name: str
    stateful: bool
    join: str
    sources: tuple[str, ...]
    targets: tuple[str, ...] = ()
    epoch: int = 1
    primary: str = ""
    backups: list[str] = field(default_factory=list)
    units: list[_Unit] = field(default_factory=list)
    durable: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    slots: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _SyntheticRequest:
    name: str
    key: str | None
    client: str
    source: str | None
    replied: bool = False
    fed_back: bool = False
    complete: bool = False


class _World:
    def __init__(self, seed: int, shape: str, requests: int, backups: int, ordered: bool) -> None:
        self.rng = random.Random(seed)
        self.lines: list[Line] = []
        self.owners: list[str] = []
        self.generation = 1
        self.instances = 0
        self.values = 0
        self.wanted = requests
        self.backups = backups
        self.requests: dict[str, _SyntheticRequest] = {}
        self.tokens: dict[tuple[str, str, Lane], _Token] = {}
        self.operators = {
            name: _Operator(name, kind == "stateful", join, tuple(inputs.split()))
            for name, (kind, join, inputs) in SHAPES[shape].items()
        }
        self.sink = list(self.operators)[-1]
        for op in self.operators.values():
            below = [other.name for other in self.operators.values() if op.name in other.sources]
            op.targets = (
                *below,
                *(("F",) if op.name == self.sink else ()),
                *(("F!",) if op.name == self.sink and shape == "loop" else ()),
            )
            op.primary = self.fresh(op.name)
            op.backups = [self.fresh(op.name) for _ in range(backups if op.stateful else 0)]
            op.slots = [(1, self.fresh(op.name)) for _ in range(2)]
        self.emit(
            "0-graph",
            GraphLine(
                id=f"{shape}-{seed}",
                ordered=ordered,
                want=backups,
                operators={
                    op.name: OperatorEntry(
                        kind="stateful" if op.stateful else "stateless",
                        join=op.join,
                        inputs=op.sources,
                        outputs=op.targets,
                    )
                    for op in self.operators.values()
                },
            ),
        )

    def fresh(self, name: str) -> str:
        self.instances += 1
        return f"{name}-{self.instances}"

    def emit(self, owner: str, line: Line) -> None:
        self.owners.append(owner)
        self.lines.append(line)

    # ---- requests ----

    def log(self, source: str | None = None) -> None:
        name = f"0/{len(self.requests)}"
        number = len(self.requests)
        key = None if source is not None or self.rng.random() < 0.2 else f"k{number}"
        request = self.requests[name] = _SyntheticRequest(name, key, f"c{number}", source)
        digest = f"d{number}" if source is None else None
        if source is None:
            self.emit(request.client, CallLine(client=request.client, key=key, digest=digest))
        self.emit(
            "F-1",
            LogLine(
                i="F-1",
                gen=self.generation,
                req=name,
                key=key,
                shard=0,
                epoch=1,
                digest=digest,
                source=source,
            ),
        )
        everyone = tuple(op.name for op in self.operators.values() if "F" in op.sources)
        self.tokens["F", name, ()] = _Token(name, everyone, frozenset())

    def progress(self) -> None:
        """Reply to, feed back and complete what is durable."""
        for request in list(self.requests.values()):
            if request.complete:
                continue
            sink = self.outputs(self.sink, request.name)
            if sink is None or not all(self.is_durable(token.deps) for token in sink):
                continue
            if not request.replied:
                request.replied = True
                values = tuple(
                    sorted(token.value for token in sink if token.value is not None and "F" in token.route)
                )
                self.emit(
                    "F-1",
                    ReplyLine(
                        i="F-1",
                        gen=self.generation,
                        req=request.name,
                        values=values,
                        epoch=1,
                        digest=f"r{request.name}",
                    ),
                )
                if request.source is None:
                    self.emit(
                        request.client,
                        RetLine(
                            client=request.client, key=request.key, status="ok", digest=f"r{request.name}"
                        ),
                    )
            if not request.fed_back:
                request.fed_back = True
                for token in sink:
                    if token.value is not None and "F!" in token.route:
                        self.log(token.value)
            everything = [self.outputs(name, request.name) for name in self.operators]
            if all(
                tokens is not None and all(self.is_durable(token.deps) for token in tokens)
                for tokens in everything
            ):
                request.complete = True
                self.emit("F-1", CompleteLine(req=request.name, i="F-1"))

    def lanes(self, name: str) -> list[Lane]:
        op = self.operators[name]
        if op.join == "interleave":
            return [(source,) for source in op.sources]
        return [()]

    def outputs(self, name: str, request: str) -> list[_Token] | None:
        """The tokens of all lanes; None while one is missing."""
        made = [self.tokens.get((name, request, lane)) for lane in self.lanes(name)]
        tokens = [token for token in made if token is not None]
        return tokens if len(tokens) == len(made) else None

    # ---- execution ----

    def is_durable(self, deps: Iterable[State]) -> bool:
        return all(
            version
            <= (
                self.operators[name].ends[epoch]
                if epoch in self.operators[name].ends
                else self.operators[name].durable
            )
            for name, epoch, version in deps
        )

    def inputs(self, op: _Operator, request: str, lane: Lane) -> list[tuple[str, _Token]] | None:
        """The tokens a unit would run on; None if it is not ready."""
        if (op.name, request, lane) in self.tokens:
            return None
        if op.join == "interleave":
            token = self.tokens.get((lane[-1], request, lane[:-1]))
            return None if token is None else [(lane[-1], token)]
        tokens = [(source, self.tokens.get((source, request, lane))) for source in op.sources]
        have = [(source, token) for source, token in tokens if token is not None]
        if op.join == "first":
            self.rng.shuffle(have)
            values = [(source, token) for source, token in have if op.name in token.route]
            if values:
                return values[:1]
        return have if len(have) == len(tokens) else None

    def execute(self, op: _Operator) -> bool:
        ready = [
            (request.name, lane, tokens)
            for request in self.requests.values()
            if not request.complete
            for lane in self.lanes(op.name)
            if (tokens := self.inputs(op, request.name, lane)) is not None
        ]
        if not ready:
            return False
        self.rng.shuffle(ready)
        batch = ready[: self.rng.randint(1, 3)] if op.stateful else ready[:1]
        if op.stateful:
            self.execute_stateful(op, batch)
        else:
            self.execute_stateless(op, *batch[0])
        return True

    def choose(
        self, op: _Operator, tokens: list[tuple[str, _Token]]
    ) -> tuple[tuple[str, ...], str | None, tuple[str, ...]]:
        """(in, out, route) of a unit."""
        values = tuple(
            token.value for _, token in tokens if token.value is not None and op.name in token.route
        )
        if not values:
            return (), None, ()
        self.values += 1
        targets = [target for target in op.targets if target != "F!"]
        if len(targets) > 1 and self.rng.random() < 0.4:
            targets = self.rng.sample(targets, self.rng.randint(0, len(targets) - 1))
        if "F!" in op.targets and self.rng.random() < 0.2:
            targets.append("F!")
        return values, f"v:{self.values}", tuple(targets)

    def execute_stateless(
        self, op: _Operator, request: str, lane: Lane, tokens: list[tuple[str, _Token]]
    ) -> None:
        values, out, route = self.choose(op, tokens)
        deps = frozenset[State]().union(*(token.deps for _, token in tokens))
        slot = int(request.split("/")[1]) % 2
        epoch, instance = op.slots[slot]
        if out is not None:
            self.emit(
                instance,
                ExecLine(
                    i=instance,
                    gen=self.generation,
                    op=op.name,
                    epoch=epoch,
                    slot=slot,
                    req=request,
                    lane=lane,
                    inputs=values,
                    out=out,
                    route=route,
                ),
            )
        self.tokens[op.name, request, lane] = _Token(out, route, deps)

    def execute_stateful(
        self, op: _Operator, batch: list[tuple[str, Lane, list[tuple[str, _Token]]]]
    ) -> None:
        seq = op.units[-1].seq if op.units else 0
        chain = op.units[-1].chain if op.units else ""
        version = seq + len(batch)
        before = op.units[-1].deps if op.units else frozenset[State]()
        deps = before.union(*(token.deps for _, _, tokens in batch for _, token in tokens))
        for request, lane, tokens in batch:
            seq += 1
            values, out, route = self.choose(op, tokens)
            chain = chain_next(chain, out)
            op.units.append(_Unit(op.epoch, seq, version, (request, lane), chain, deps))
            self.emit(
                op.primary,
                ExecLine(
                    i=op.primary,
                    gen=self.generation,
                    op=op.name,
                    epoch=op.epoch,
                    seq=seq,
                    version=version,
                    req=request,
                    lane=lane,
                    inputs=values,
                    out=out,
                    route=route,
                    chain=chain,
                ),
            )
            self.tokens[op.name, request, lane] = _Token(out, route, deps | {(op.name, op.epoch, version)})

    def advance(self, op: _Operator) -> bool:
        """The oldest version that is not durable becomes so, if its dependencies are."""
        waiting = [unit for unit in op.units if unit.seq == unit.version and unit.seq > op.durable]
        if not waiting or not self.is_durable(waiting[0].deps):
            return False
        unit = waiting[0]
        for backup in op.backups:
            self.emit(
                backup,
                ApplyLine(
                    i=backup,
                    gen=self.generation,
                    op=op.name,
                    epoch=op.epoch,
                    version=unit.seq,
                    chain=unit.chain,
                ),
            )
        op.durable = unit.seq
        self.emit(
            op.primary,
            DurableLine(i=op.primary, gen=self.generation, op=op.name, epoch=op.epoch, version=unit.seq),
        )
        return True

    # ---- faults ----

    def fail(self, op: _Operator) -> None:
        """Primary gone: some of what is not durable is lost, and downstream everything that depended on
        it."""
        self.emit("harness", FaultLine(what="kill", i=op.primary))
        self.generation += 1
        self.cut(op, self.rng.choice(self.ends_allowed(op)))
        for below in self.operators.values():
            if below is op or not below.stateful:
                continue
            if any(self.orphan(unit.deps) for unit in below.units):
                self.cut(below, self.ends_allowed(below)[-1])
        gone = [key for key, token in self.tokens.items() if self.orphan(token.deps)]
        for key in gone:
            del self.tokens[key]

    def ends_allowed(self, op: _Operator) -> list[int]:
        """Versions with durable dependencies only: a state with a pending one could later have to go back
        further."""
        return [
            op.durable,
            *(
                unit.seq
                for unit in op.units
                if unit.seq == unit.version and unit.seq > op.durable and self.is_durable(unit.deps)
            ),
        ]

    def cut(self, op: _Operator, end: int) -> None:
        op.ends[op.epoch] = end
        op.epoch += 1
        op.units = [unit for unit in op.units if unit.seq <= end]
        op.durable = end
        op.primary = op.backups.pop(0) if op.backups else self.fresh(op.name)
        if len(op.backups) < self.backups:
            op.backups.append(self.fresh(op.name))
        for writer in ("m-1", op.primary):
            self.emit(
                writer, FailoverLine(op=op.name, gen=self.generation, epoch=op.epoch, end=end, i=op.primary)
            )
        chain = op.units[-1].chain if op.units else ""
        for backup in op.backups:
            self.emit(
                backup,
                ApplyLine(
                    i=backup,
                    gen=self.generation,
                    op=op.name,
                    epoch=op.epoch,
                    version=end,
                    chain=chain,
                    snapshot=True,
                ),
            )

    def orphan(self, deps: Iterable[State]) -> bool:
        return any(
            epoch in (ends := self.operators[name].ends) and version > ends[epoch]
            for name, epoch, version in deps
        )

    def move(self, op: _Operator) -> None:
        """A slot gets another instance; what no successor has received is computed again."""
        slot = self.rng.randrange(2)
        self.generation += 1
        op.slots[slot] = (op.slots[slot][0] + 1, self.fresh(op.name))
        for key in list(self.tokens):
            name, request, _ = key
            if name != op.name or int(request.split("/")[1]) % 2 != slot or self.requests[request].complete:
                continue
            received = any((target, request) == held[:2] for target in op.targets for held in self.tokens)
            if not received and op.name != self.sink:
                del self.tokens[key]

    # ---- the run ----

    def run(self, faults: int) -> None:
        rng = self.rng
        for _ in range(100 * self.wanted):
            if len(self.requests) >= self.wanted:
                break
            action = rng.random()
            op = rng.choice(list(self.operators.values()))
            if action < 0.2:
                self.log()
            elif action < 0.6:
                self.execute(op)
            elif action < 0.85 and op.stateful:
                self.advance(op)
            elif faults > 0 and action < 0.9:
                faults -= 1
                if op.stateful:
                    self.fail(op)
                else:
                    self.move(op)
            else:
                self.progress()
        self.emit("harness", HealLine())
        self.drain()
        self.emit(
            "z-final",
            FinalLine(
                ops={
                    op.name: FinalOperator(
                        primary=op.primary,
                        epoch=op.epoch,
                        insync=tuple(op.backups),
                        version=op.units[-1].seq if op.units else 0,
                    )
                    for op in self.operators.values()
                    if op.stateful
                },
                open=(),
            ),
        )

    def drain(self) -> None:
        while True:
            moved = (
                sum(self.execute(op) or (op.stateful and self.advance(op)) for op in self.operators.values())
                > 0
            )
            self.progress()
            if not moved and all(request.complete for request in self.requests.values()):
                return


def valid_history(
    seed: int, requests: int = 8, faults: int = 3, shape: str | None = None, ordered: bool | None = None
) -> list[Line]:
    """A history without any violation; the same seed gives the same one.

    `shape` is a name of SHAPES, by default drawn. Without a global order the lines are those of the
    processes' files, one file after the other.
    """
    rng = random.Random(seed)
    drawn = rng.choice(sorted(SHAPES))
    in_order = rng.random() < 0.5 if ordered is None else ordered
    world = _World(seed, shape or drawn, requests, rng.randint(0, 2), in_order)
    world.run(faults)
    if in_order:
        return world.lines
    files: dict[str, list[Line]] = {}
    for owner, line in zip(world.owners, world.lines, strict=True):
        files.setdefault(owner, []).append(line)
    middle = [name for name in files if name not in ("0-graph", "z-final")]
    rng.shuffle(middle)
    return [line for name in ("0-graph", *middle, "z-final") for line in files[name]]
