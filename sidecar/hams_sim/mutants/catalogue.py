"""All mutants by name, and how one is switched on in this process."""

from hams_sim.mutants import (
    deadlines,
    early,
    frontends,
    managers,
    operators,
    receipts,
    replays,
    states,
    succession,
)
from hams_sim.mutants.mutant import Edit, Mutant, Switch

MUTANTS: dict[str, Mutant] = {
    **states.MUTANTS,
    **frontends.MUTANTS,
    **managers.MUTANTS,
    **operators.MUTANTS,
    **deadlines.MUTANTS,
    **early.MUTANTS,
    **receipts.MUTANTS,
    **replays.MUTANTS,
    **succession.MUTANTS,
}

OWN_CHECKS = (
    Edit("frontend.machine", "FrontendMachine._after", "owner.check()", "pass"),
    Edit("frontend.owner", "ShardOwner._inject", "if live.index > self.log.committed:", "if False:"),
    Edit("frontend.owner", "ShardOwner._try_reply", "if self._ctx.mode.waits_for_durable:", "if False:"),
)
"""Checks of the core itself: with a mutant they are left out, for the simulation must see what follows."""

_switch = Switch()


def switch_on(name: str) -> None:
    """This mutant, and no other one. Raises MutantError where the core is machine code."""
    _switch.on((*OWN_CHECKS, *MUTANTS[name].edits))


def switch_off() -> None:
    """No mutant."""
    _switch.off()
