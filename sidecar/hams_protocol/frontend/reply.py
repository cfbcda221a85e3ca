"""How the reply is chosen out of the sink tokens of a request (api.md, Replies). Deterministic in the tokens;
looks at durable ones only, unless its owner judges what it depends on."""

from typing import NamedTuple

from hams_protocol.frontend.live import Live
from hams_protocol.frontend.plan import Plan
from hams_protocol.graph import FRONTEND
from hams_protocol.joins import inconsistent_fan_out
from hams_protocol.messages import Kind, ModelError, Token


class Decided(NamedTuple):
    """A reply: its tokens, or an error. `seen` are all tokens that decided it."""

    tokens: tuple[Token, ...]
    error: ModelError | None
    seen: tuple[Token, ...] = ()


def decide(plan: Plan, live: Live, pending: bool = False) -> Decided | None:
    """The reply, or None while a token that it may hang on is missing or not durable (`pending`: it need not
    be).

    Per reply tensor the sources are asked in order: the first with a value is taken; an error there is the
    reply.
    """
    if live.overflow is not None:
        message = (
            f"feedback of {live.overflow} went on for more than maxHops={plan.max_hops[live.overflow]} "
            "internal requests"
        )
        return Decided((), ModelError(live.overflow, message))
    outputs = live.admit.outputs
    used: dict[int, Token] = {}
    seen: list[Token] = []
    for choice in plan.choices:
        if outputs is not None and choice.name not in outputs:
            continue
        for lanes in choice.sources:
            errors: list[tuple[int, Token]] = []
            for number in lanes:
                token = live.tokens[number]
                if token is None or not (live.durable[number] or pending):
                    return None
                seen.append(token)
                if token.kind is Kind.ERROR:
                    return Decided((token,), token.error, tuple(seen))
                failure = token.failure(FRONTEND)
                if failure is not None:
                    return Decided((), failure, tuple(seen))
                if token.kind is Kind.VALUE:
                    errors.append((number, token))
            if errors:
                used.update(errors)
                break
    if live.unresolved > 0:
        return None
    tokens = tuple(used.values())
    if (op := inconsistent_fan_out(token.fan for token in tokens)) is not None:
        mixed = ModelError(
            op,
            f"two executions of {op} reached the reply: its instance died together with every receiver of "
            "the first",
        )
        return Decided((), mixed, tuple(seen))
    return Decided(tokens, None, tuple(seen))
