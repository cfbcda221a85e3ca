"""What the checker says: violations, checks that could not be made, and what is wrong with the history
itself.

A violation names the invariant, the operator or request, the values that contradict each other, and the lines
as `file:line`, so that it can be understood without a tool. Nothing here judges.
"""

from dataclasses import dataclass
from typing import TypedDict

from hams_history.lines import encode
from hams_history.source import History

findings_per_invariant_max = 50
"""Violations of one invariant that are explained; the others are counted. One fault breaks many lines, and
the first ones tell."""

evidence_lines_max = 12
"""Lines shown with one violation."""

TITLES = {
    "I1": "NoLoss: what was acknowledged survives",
    "I2": "OneValue: one visible value per (request, lane, operator)",
    "I3": "Closure: only durable dependencies, nothing orphan",
    "I4": "OnceEach: each (request, lane) once in a surviving history",
    "I5": "OneWriter: one instance per epoch",
    "I7": "Converge: after the faults everything completes",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One invariant broken. `lines` are positions in the history, the decisive ones first."""

    invariant: str
    message: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HistoryProblem:
    """The history itself is not valid: a line that cannot be read, or that contradicts the format. `where` is
    `file:line`."""

    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Skip:
    """A check that was not made, and why."""

    check: str
    why: str


class Evidence(TypedDict):
    """A line as JSON output shows it."""

    where: str
    line: str


class Findings:
    """Collects what the checks find; of each invariant at most `findings_per_invariant_max` are kept, the
    others counted."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.violations: list[Violation] = []
        self.problems: list[HistoryProblem] = []
        self.skips: list[Skip] = []
        self.counts: dict[str, int] = {}
        self.problems_found = 0

    def violation(self, invariant: str, message: str, *lines: int) -> None:
        """An invariant is broken; `lines` prove it."""
        if not self.full(invariant):
            self.violations.append(
                Violation(invariant, message, tuple(dict.fromkeys(lines))[:evidence_lines_max])
            )
        self.count(invariant)

    def count(self, invariant: str) -> None:
        """One more violation, not explained."""
        self.counts[invariant] = self.counts.get(invariant, 0) + 1

    def full(self, invariant: str) -> bool:
        """Whether further violations of it are only counted, so that nobody works out their explanation."""
        return self.counts.get(invariant, 0) >= findings_per_invariant_max

    def problem(self, message: str, where: int | str) -> None:
        """The history is not valid; `where` is a position or a file."""
        self.problems_found += 1
        if self.problems_found <= findings_per_invariant_max:
            self.problems.append(
                HistoryProblem(where if isinstance(where, str) else self.history.where(where), message)
            )

    def skip(self, check: str, why: str) -> None:
        """A check was not made."""
        self.skips.append(Skip(check, why))


class Report:
    """The verdict over one history."""

    def __init__(self, findings: Findings) -> None:
        self.history = findings.history
        self.violations = tuple(sorted(findings.violations, key=lambda item: item.invariant))
        self.problems = tuple(findings.problems)
        self.skips = tuple(findings.skips)
        self.counts = dict(findings.counts)
        self.problems_found = findings.problems_found

    @property
    def ok(self) -> bool:
        """No violation in a valid history."""
        return not self.violations and not self.problems

    @property
    def exit_code(self) -> int:
        """0: all invariants hold; 1: at least one is violated; 2: none seen violated, but the history is not
        valid, so they are not proven."""
        return 1 if self.violations else 2 if self.problems else 0

    @property
    def broken(self) -> frozenset[str]:
        """The invariants that are violated."""
        return frozenset(item.invariant for item in self.violations)

    def evidence(self, violation: Violation) -> list[Evidence]:
        """The lines of a violation with their places."""
        return [
            {"where": self.history.where(line), "line": encode(self.history.lines[line]).decode().rstrip()}
            for line in violation.lines
        ]

    def render(self) -> str:
        """The report as text for people."""
        text: list[str] = []
        for number, violation in enumerate(self.violations, 1):
            text.append(f"{number}. {violation.invariant} violated ({TITLES[violation.invariant]})")
            text.append(f"   {violation.message}")
            shown = self.evidence(violation)
            width = max((len(item["where"]) for item in shown), default=0)
            text += [f"     {item['where']:<{width}}  {item['line']}" for item in shown]
            text.append("")
        for invariant, count in sorted(self.counts.items()):
            if count > findings_per_invariant_max:
                text.append(
                    f"{invariant}: {count - findings_per_invariant_max} more violations are not shown."
                )
        if self.problems:
            text.append("The history is not valid:")
            text += [f"  {problem.where}: {problem.message}" for problem in self.problems]
            if self.problems_found > len(self.problems):
                text.append(f"  and {self.problems_found - len(self.problems)} more")
            text.append("")
        if self.skips:
            text.append("Not checked:")
            text += [f"  {skip.check}: {skip.why}" for skip in self.skips]
            text.append("")
        text.append(self.summary())
        return "\n".join(text)

    def summary(self) -> str:
        """The verdict in one line."""
        seen = f"{len(self.history.lines)} lines"
        if self.violations:
            return (
                f"FAILED: {sum(self.counts.values())} violation(s) of {', '.join(sorted(self.counts))} in "
                f"{seen}."
            )
        if self.problems:
            return f"INVALID: {self.problems_found} problem(s) in {seen}; nothing is proven."
        return f"OK: {seen}, no violation{' in what could be checked' if self.skips else ''}."

    def as_json(self) -> dict[str, object]:
        """The report as JSON for programs."""
        return {
            "ok": self.ok,
            "exit_code": self.exit_code,
            "lines": len(self.history.lines),
            "counts": self.counts,
            "violations": [
                {"invariant": item.invariant, "message": item.message, "lines": self.evidence(item)}
                for item in self.violations
            ],
            "problems": [{"where": item.where, "message": item.message} for item in self.problems],
            "skipped": [{"check": item.check, "why": item.why} for item in self.skips],
        }
