"""A checked resource -> the graph that proxies and managers run. Adds nothing that the resource does not say,
and decides no default."""

import json

from hams_graph import resource as rs
from hams_graph.document import Plain
from hams_graph.wiring import Wiring
from hams_protocol.graph import (
    FRONTEND,
    AppSpec,
    BatchPolicy,
    Checkpoint,
    Edge,
    Feedback,
    FrontendSpec,
    Graph,
    GraphData,
    Input,
    KubernetesSpec,
    ModelSpec,
    Operator,
    RecoverySpec,
    ReplyTensor,
    SchedulePolicy,
    TensorSpec,
    WhenLate,
    WhenLost,
)
from hams_protocol.limits import checkpoint_batches
from hams_protocol.modes import ModePolicy


def compile_graph(wiring: Wiring, uid: str = "") -> Graph:
    """The graph of a resource that `validate.check` found nothing wrong with. `uid` outweighs the resource's
    own; without any it is the name."""
    resource, spec = wiring.resource, wiring.resource.spec
    replying = {source for sources in wiring.replies for source, _ in sources}
    return Graph(
        GraphData(
            name=resource.name,
            uid=uid or resource.uid or resource.name,
            mode=spec.mode,
            frontend=FrontendSpec(
                replicas=spec.frontend.replicas,
                shards=spec.frontend.shards,
                request_timeout_s=spec.frontend.request_timeout_s,
                deadline_s=spec.frontend.deadline_s or _last_step_s(spec.frontend),
                admission=spec.frontend.admission,
                app_parameter=spec.frontend.app_by.removeprefix("parameter:"),
                apps=tuple(AppSpec(app.name, app.deadline_s or 0.0) for app in spec.frontend.apps),
                max_in_flight=spec.frontend.max_in_flight,
                max_in_flight_bytes=spec.frontend.max_in_flight_bytes,
                max_request_bytes=spec.frontend.max_request_bytes,
                replies_kept=spec.frontend.replies_kept,
                replies_kept_bytes=spec.frontend.replies_kept_bytes,
                token_secret=spec.frontend.token_secret,
                hide_model_errors=spec.frontend.hide_model_errors,
            ),
            managers=spec.managers.replicas,
            recovery=RecoverySpec(
                suspect_after_s=spec.recovery.suspect_after_s,
                max_attempts=spec.recovery.max_attempts,
                when_unprotected=spec.recovery.when_unprotected,
                when_lost=WhenLost.RESTART if ModePolicy.of(spec.mode).replays else spec.recovery.when_lost,
                suspects=spec.recovery.suspects,
            ),
            inputs=tuple(
                TensorSpec(item.name, item.datatype.value, item.shape, optional=item.optional)
                for item in spec.inputs
            ),
            outputs=tuple(
                ReplyTensor(reply.name, tuple(wiring.replies[number]), reply.lanes is rs.Lanes.CONCAT)
                for number, reply in enumerate(spec.outputs)
            ),
            operators=tuple(_operator(wiring, name, name in replying) for name in wiring.order),
            kubernetes=KubernetesSpec(
                frontend_template=_json(spec.frontend.pod_template),
                manager_template=_json(spec.managers.pod_template),
                service=_json(spec.frontend.service),
                evict_after_s=spec.recovery.evict_after_s,
            ),
        )
    )


def _operator(wiring: Wiring, name: str, replying: bool) -> Operator:
    position = wiring.index[name]
    op = wiring.resource.spec.operators[position]
    stateful = op.stateful
    policy = ModePolicy.of(wiring.resource.spec.mode)
    # A mode without copies has no use for an instance that holds none: it would only wait.
    copied = stateful is not None and policy.replicates and not policy.replays
    return Operator(
        name=name,
        join=op.join,
        in_edges=tuple(
            Edge(source, name, tuple(Input(item.tensor, item.name, item.optional) for item in items))
            for source, items in wiring.edges[position].items()
        ),
        successors=(*wiring.successors(name), *((FRONTEND,) if replying else ())),
        lanes=wiring.lanes[name],
        outputs=tuple(
            TensorSpec(item.name, item.datatype.value, item.shape, finite=item.finite) for item in op.outputs
        ),
        batch=_batch(op, wiring.resource.spec.frontend, _when_late(wiring, name, policy)),
        model=ModelSpec(
            op.model.entrypoint,
            _json(op.model.config),
            op.model.image,
            op.model.python,
            op.model.env,
            _json(op.model.warm_up.row) if op.model.warm_up.enabled else "",
        ),
        stateful=stateful is not None,
        backups=stateful.backups if stateful and copied else 0,
        window=stateful.window if stateful else 1,
        slots=op.replicas,
        hot_standbys=op.standby.hot,
        # Nor has it captures to store: a checkpoint would hold the first state under a later number.
        checkpoint=(
            _checkpoint(stateful.checkpoint)
            if stateful and stateful.checkpoint and policy.replicates
            else None
        ),
        feedback=Feedback(op.feedback.inputs, op.feedback.max_hops) if op.feedback else None,
        pod_template=_json(op.pod_template),
        delta=stateful is None or stateful.delta is rs.Delta.AUTO,
    )


def _last_step_s(frontend: rs.Frontend) -> float:
    """The deadline that the steps of cost imply; 0: there are none."""
    return frontend.cost[-1].after_s if frontend.cost else 0.0


def _steps(frontend: rs.Frontend) -> tuple[tuple[float, float], ...]:
    """Seconds before a deadline, and the share of an answer's worth that is lost from then on."""
    total = sum(step.cost for step in frontend.cost)
    return tuple((_last_step_s(frontend) - step.after_s, step.cost / total) for step in frontend.cost)


def _checkpoint(given: rs.CheckpointSection) -> Checkpoint:
    return Checkpoint(given.every_s, given.keep, given.dir, given.batches or checkpoint_batches)


def _when_late(wiring: Wiring, name: str, mode: ModePolicy) -> WhenLate:
    """The author's choice; else an operator sheds where its policy knows deadlines, what it has run is never
    run again, and no state misses what was shed."""
    batch = wiring.resource.spec.operators[wiring.index[name]].batch
    if batch.when_late is not None:
        return batch.when_late
    runs = batch.policy is SchedulePolicy.FIFO or mode.replays or _reaches_state(wiring, name)
    return WhenLate.RUN if runs else WhenLate.SHED


def _reaches_state(wiring: Wiring, name: str) -> bool:
    """True if a state would miss what this operator sheds: its own, or one behind it, by feedback too."""
    operators, reached, ahead = wiring.resource.spec.operators, set[str](), [name]
    while ahead:
        here = ahead.pop()
        if here in reached:
            continue
        reached.add(here)
        op = operators[wiring.index[here]]
        if op.stateful is not None:
            return True
        # What is fed back enters the graph anew.
        ahead += wiring.order if op.feedback else wiring.successors(here)
    return False


def _batch(op: rs.OperatorSection, frontend: rs.Frontend, when_late: WhenLate) -> BatchPolicy:
    given = op.batch
    costs = {app.name: float(app.cost) for app in frontend.apps if app.cost > 1}
    return BatchPolicy(
        given.max_rows,
        given.max_delay_s,
        given.policy,
        when_late,
        given.app_by,
        given.feature,
        given.memory_s,
        given.bounds.p99_s if given.bounds else 0.0,
        given.keep_order,
        tuple(costs.items()) if given.app_by == frontend.app_by else (),
        _steps(frontend) if given.policy is SchedulePolicy.DISTRIBUTION else (),
    )


def _json(value: dict[str, Plain]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
