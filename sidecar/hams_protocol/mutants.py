"""Protocol bugs that can be switched on by name, in tests only: the proof that the simulator's checks can fail.

Each mutant leaves out one rule of protocol.md that a hasty implementer would leave out. `make sim-mutants` switches on one at a
time and counts the histories until a check catches it. In production `active` is empty and stays so.
"""

active: frozenset[str] = frozenset()

REGISTRY: dict[str, str] = {
    "ack-without-value-id": "an acknowledgement of a replaced value counts for its successor (section 3)",
    "ack-without-epoch": "an acknowledgement of the owner's old epoch counts in its new one (section 3)",
}


def on(name: str) -> bool:
    """Whether the bug `name` is switched on."""
    return name in active
