"""How the reply is chosen out of the sink tokens of a request (api.md, Replies). Deterministic in the tokens;
looks at durable ones only."""

from hams_protocol.frontend.live import Live
from hams_protocol.frontend.plan import Plan
from hams_protocol.graph import FRONTEND
from hams_protocol.joins import inconsistent_fan_out
from hams_protocol.messages import Kind, ModelError, Token

Reply = tuple[tuple[Token, ...], ModelError | None]


def decide(plan: Plan, live: Live, replayed: bool = False) -> Reply | None:
    """The reply, or None while a token that it may hang on is missing or not durable (`replayed`: it need
    not be).

    Per reply tensor the sources are asked in order: the first with a value is taken; an error there is the
    reply.
    """
    if live.overflow is not None:
        message = (
            f"feedback of {live.overflow} went on for more than maxHops={plan.max_hops[live.overflow]} "
            "internal requests"
        )
        return (), ModelError(live.overflow, message)
    outputs = live.admit.outputs
    used: dict[int, Token] = {}
    for choice in plan.choices:
        if outputs is not None and choice.name not in outputs:
            continue
        for lanes in choice.sources:
            errors: list[tuple[int, Token]] = []
            for number in lanes:
                token = live.tokens[number]
                if token is None or not (live.durable[number] or replayed):
                    return None
                if token.kind is Kind.ERROR:
                    return (token,), token.error
                failure = token.failure(FRONTEND)
                if failure is not None:
                    return (), failure
                if token.kind is Kind.VALUE:
                    errors.append((number, token))
            if errors:
                used.update(errors)
                break
    if live.unresolved > 0:
        return None
    tokens = tuple(used.values())
    if (op := inconsistent_fan_out(token.fan for token in tokens)) is not None:
        return (), ModelError(
            op,
            f"two executions of {op} reached the reply: its instance died together with every receiver of "
            "the first",
        )
    return tokens, None
