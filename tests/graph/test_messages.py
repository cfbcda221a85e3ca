"""Every message that the author of a graph can get."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from hams_graph import InvalidGraph, load_object, load_text

Json = dict[str, Any]
Change = Callable[[Json], None]


def tensor(name: str, shape: list[int] | None = None) -> Json:
    return {"name": name, "datatype": "FP32", "shape": [4] if shape is None else shape}


def operator(name: str, inputs: list[Any], outputs: list[Json] | None = None, **more: Any) -> Json:
    """An operator that takes `inputs` and makes `x`, FP32 [4], if nothing else is said."""
    made = [tensor("x")] if outputs is None else outputs
    return {
        "name": name,
        "model": {"entrypoint": f"models:{name.title()}"},
        "inputs": inputs,
        "outputs": made,
        **more,
    }


def graph(*operators: Json, reply: Json | None = None) -> Json:
    """A graph over request tensors `x` (FP32 [4]) and optional `y` (INT64 []); it replies with `x` of the
    last operator."""
    return {
        "apiVersion": "hams.dev/v1alpha1",
        "kind": "ServiceGraph",
        "metadata": {"name": "test"},
        "spec": {
            "inputs": [tensor("x"), {"name": "y", "datatype": "INT64", "shape": [], "optional": True}],
            "outputs": [{"name": "out", "from": f"{operators[-1]['name']}.x"} | (reply or {})],
            "operators": list(operators),
            "frontend": {"maxInFlight": 64},
        },
    }


def chain() -> Json:
    return graph(operator("first", ["request.x"]), operator("second", ["first.x"], stateful={}))


def _place(spec: Json, way: list[str]) -> Any:
    place: Any = spec
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    return place


def put(path: str, value: Any) -> Change:
    """Sets `operators.1.stateful.window` and the like."""
    *way, last = path.split(".")

    def change(spec: Json) -> None:
        place = _place(spec, way)
        place[int(last) if isinstance(place, list) else last] = copy.deepcopy(value)

    return change


def drop(path: str) -> Change:
    *way, last = path.split(".")

    def change(spec: Json) -> None:
        del _place(spec, way)[last]

    return change


def both(*changes: Change) -> Change:
    def change(spec: Json) -> None:
        for item in changes:
            item(spec)

    return change


def problems(result: Json, **more: bool) -> list[str]:
    with pytest.raises(InvalidGraph) as caught:
        load_object(result, **({"on_kubernetes": False} | more))
    return str(caught.value).splitlines()


DNS_LABEL = "expected a DNS label (lower-case letters, digits and inner hyphens, 63 characters at most)"
TENSOR_NAME = "expected a tensor name (letters, digits, _ . -, not starting with . or -)"

STORED: Json = {"checkpoint": {"every": "1s", "dir": "/c"}}
MODES = '"NonStop", "BufferedOutputs", "StopAndCopy", "Remus", "LineageStash" or "None"'

# What is changed in `chain()`, and the one line its author gets. These lines are user interface: read them as
# a user would.
FIELDS = [
    (
        put("mode", "Nonstop"),
        f'spec.mode: expected {MODES}, found "Nonstop"; did you mean "NonStop"?',
    ),
    (
        put("mode", "LineageStash"),
        'spec.operators[1].stateful.checkpoint: is missing: mode "LineageStash" has no backups, and "second" '
        "begins again from its checkpoint; say where it is written",
    ),
    (
        put("operators.1.stateful.checkpoint", {"every": "1s", "dir": "/c", "batches": 9}),
        'spec.operators[1].stateful.checkpoint.batches: expected no value in mode "NonStop", which stores by '
        "`every`; leave it out",
    ),
    (
        both(
            put("mode", "None"),
            put("operators.1.stateful.checkpoint", {"every": "1s", "dir": "/c", "batches": 9}),
        ),
        'spec.operators[1].stateful.checkpoint.batches: expected no value in mode "None", which captures no '
        "state; leave it out",
    ),
    (
        both(put("mode", "LineageStash"), put("operators.1.stateful", STORED | {"backups": 2})),
        'spec.operators[1].stateful.backups: expected no value in mode "LineageStash", which has no backups, '
        "found 2; leave it out",
    ),
    (
        both(put("mode", "LineageStash"), put("operators.1.stateful", STORED | {"window": 2})),
        'spec.operators[1].stateful.window: expected no value in mode "LineageStash", where nothing waits '
        "for a state, found 2; leave it out",
    ),
    (put("mode", None), f"spec.mode: expected {MODES}, found nothing"),
    (put("frontend.replica", 2), 'spec.frontend.replica: unknown field; did you mean "replicas"?'),
    (put("frontend.replicas", 0), "spec.frontend.replicas: must be from 1 to 16, found 0"),
    (put("frontend.replicas", "2"), 'spec.frontend.replicas: expected a whole number, found "2"'),
    (put("frontend.replicas", True), "spec.frontend.replicas: expected a whole number, found true"),
    (put("frontend.replicas", 1.5), "spec.frontend.replicas: expected a whole number, found the number 1.5"),
    (put("frontend", []), "spec.frontend: expected a mapping, found a list"),
    (put("frontend", None), 'spec.frontend: expected a mapping, found nothing; write "{}" for the defaults'),
    (put("frontend.shards", 65), "spec.frontend.shards: must be from 1 to 64, found 65"),
    (
        put("frontend.requestTimeout", 30),
        'spec.frontend.requestTimeout: expected a duration such as "150ms", "30s" or "5m", found the number '
        '30; did you mean "30s" or "30ms"?',
    ),
    (
        put("frontend.requestTimeout", "30 s"),
        'spec.frontend.requestTimeout: expected a duration such as "150ms", "30s" or "5m", found "30 s"',
    ),
    (
        put("frontend.requestTimeout", "0"),
        "spec.frontend.requestTimeout: must be from 10ms to 3600s, found 0",
    ),
    (
        put("frontend.deadline", "31s"),
        "spec.frontend.deadline: 31s is more than requestTimeout (30s), after which every client gets 504",
    ),
    (
        put("frontend.admission", "Promises"),
        'spec.frontend.admission: expected "Open" or "Promise", found "Promises"; did you mean "Promise"?',
    ),
    (
        put("frontend.appBy", "parameter:app"),
        "spec.frontend.appBy: nothing reads it: that is what apps and admission: Promise do",
    ),
    (
        put("frontend.apps", [{"name": "chat"}]),
        'spec.frontend.apps: needs appBy: which parameter names an app, such as "parameter:app"',
    ),
    (
        put("frontend", {"appBy": "parameter:app", "apps": [{"name": "chat"}, {"name": "chat"}]}),
        'spec.frontend.apps[1].name: "chat" is there already',
    ),
    (
        put("frontend", {"appBy": "parameter:app", "apps": [{"name": "chat", "deadline": "31s"}]}),
        "spec.frontend.apps[0].deadline: 31s is more than requestTimeout (30s), after which every client "
        "gets 504",
    ),
    (
        put("frontend", {"appBy": "parameter:app", "apps": [{"name": "chat", "cost": 5}]}),
        "spec.frontend.apps[0].cost: no operator reads it: none has this appBy in its batch",
    ),
    (
        put("frontend", {"appBy": "parameter:app", "apps": [{"name": "chat", "cost": 0}]}),
        "spec.frontend.apps[0].cost: must be from 1 to 1000, found 0",
    ),
    (
        both(
            put("operators.0.batch.policy", "Distribution"),
            put("frontend.cost", [{"after": "1s", "cost": 1}, {"after": "500ms", "cost": 1}]),
        ),
        "spec.frontend.cost[1].after: expected more than 1s of the step before, found 500ms",
    ),
    (
        both(
            put("operators.0.batch.policy", "Distribution"),
            put("frontend", {"deadline": "2s", "cost": [{"after": "1s", "cost": 1}]}),
        ),
        "spec.frontend.cost[0].after: the last step is the deadline: expected 2s as frontend.deadline, found "
        "1s; leave deadline out",
    ),
    (
        both(
            put("operators.0.batch.policy", "Distribution"),
            put("frontend.cost", [{"after": "31s", "cost": 1}]),
        ),
        "spec.frontend.cost[0].after: 31s is more than requestTimeout (30s), after which every client gets "
        "504",
    ),
    (
        put("frontend.cost", [{"after": "1s", "cost": 1}]),
        "spec.frontend.cost: no operator reads it: none has batch.policy: Distribution",
    ),
    (
        both(
            put("operators.0.batch.policy", "Distribution"),
            put("frontend.cost", [{"after": "1s", "cost": 0}]),
        ),
        "spec.frontend.cost[0].cost: must be from 1 to 1000, found 0",
    ),
    (
        put("operators.0.batch.keepOrder", "parameter:session"),
        "spec.operators[0].batch.keepOrder: Fifo keeps the order of all requests; Deadline and Distribution "
        "read it",
    ),
    (
        both(
            put("operators.0.batch", {"policy": "Deadline", "keepOrder": "parameter:session"}),
            put("operators.0.replicas", 2),
        ),
        "spec.operators[0].batch.keepOrder: holds within one instance, and replicas is 2",
    ),
    (
        both(put("frontend.admission", "Promise"), put("frontend.appBy", "app")),
        'spec.frontend.appBy: expected "parameter:" and the name of a request parameter, found "app"',
    ),
    (
        put("operators.0.batch.whenLate", "Shed"),
        'spec.operators[0].batch.whenLate: "Shed" needs a policy that knows deadlines: Deadline or '
        "Distribution",
    ),
    (
        both(put("operators.0.batch.policy", "Deadline"), put("operators.0.batch.appBy", "parameter:app")),
        "spec.operators[0].batch.appBy: only policy: Distribution reads it, and this one is Deadline",
    ),
    (
        put("operators.0.batch.feature", "rows"),
        "spec.operators[0].batch.feature: only policy: Distribution reads it, and this one is Fifo",
    ),
    (
        put("frontend.deadline", "0.1ms"),
        "spec.frontend.deadline: must be from 1ms to 3600s, found 0.1ms",
    ),
    (
        put("frontend.maxRequestBytes", "64MB"),
        'spec.frontend.maxRequestBytes: expected an amount of memory such as "64Mi" or "1Gi", found "64MB"; '
        'did you mean "64Mi"?',
    ),
    (
        put("frontend.maxRequestBytes", -1),
        'spec.frontend.maxRequestBytes: expected an amount of memory such as "64Mi" or "1Gi", found the '
        "number -1",
    ),
    (
        put("frontend.maxRequestBytes", "1Ki"),
        "spec.frontend.maxRequestBytes: must be from 4Ki to 1Ti, found 1Ki",
    ),
    (
        put("frontend.maxRequestBytes", "1Gi"),
        "spec.frontend.maxRequestBytes: 1Gi is more than maxInFlightBytes (256Mi): a request of that size "
        "would never be taken",
    ),
    (
        put("frontend", {"shards": 64, "maxInFlightBytes": "32Gi"}),
        "spec.frontend.maxInFlightBytes: with repliesKeptBytes, of 64 shards, each frontend may hold "
        "2056Gi: expected at most 1Ti",
    ),
    (put("managers.replicas", 0), "spec.managers.replicas: must be from 1 to 9, found 0"),
    (
        put("recovery.suspectAfter", "10ms"),
        "spec.recovery.suspectAfter: must be from 60ms to 60s, found 10ms",
    ),
    (put("recovery.maxAttempts", 0), "spec.recovery.maxAttempts: must be from 1 to 8, found 0"),
    (
        put("recovery.whenUnprotected", "Stop"),
        'spec.recovery.whenUnprotected: expected "Continue" or "Block", found "Stop"',
    ),
    (
        put("recovery.whenLost", "stop"),
        'spec.recovery.whenLost: expected "Stop" or "Restart", found "stop"; did you mean "Stop"?',
    ),
    (put("recovery.suspects", "Go"), 'spec.recovery.suspects: expected "Wait" or "Run", found "Go"'),
    (put("operator", []), 'spec.operator: unknown field; did you mean "operators"?'),
    (
        put("inputs.0.datatype", "float"),
        'spec.inputs[0].datatype: expected "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", '
        '"INT32", "INT64", "FP16", "BF16", '
        '"FP32", "FP64" or "BYTES", found "float"; did you mean "FP32"?',
    ),
    (
        put("inputs.0.shape", 4),
        "spec.inputs[0].shape: expected the shape of one row as a list, such as [64] or [-1, 3] ([] for a "
        "single number), found the number 4",
    ),
    (
        put("inputs.0.shape", [4, 0]),
        "spec.inputs[0].shape[1]: expected a size of at least 1, or -1 for a variable one, found the number "
        "0",
    ),
    (
        put("inputs.0.shape", [4, "n"]),
        'spec.inputs[0].shape[1]: expected a size of at least 1, or -1 for a variable one, found "n"',
    ),
    (put("inputs.0.shape", [1] * 9), "spec.inputs[0].shape: has 9 dimensions, 8 at most are allowed"),
    (put("inputs.0.optional", "yes"), 'spec.inputs[0].optional: expected true or false, found "yes"'),
    (put("inputs.1.name", "x"), 'spec.inputs[1].name: the name "x" is already taken by spec.inputs[0]'),
    (
        put("inputs.1.name", "a tensor"),
        f'spec.inputs[1].name: {TENSOR_NAME}, found "a tensor"',
    ),
    (
        put("inputs.1.name", 7),
        f"spec.inputs[1].name: {TENSOR_NAME}, found the number 7; write it in quotes",
    ),
    (
        drop("inputs.1.datatype"),
        "spec.inputs[1].datatype: is missing: datatype, as in the Open Inference Protocol",
    ),
    (drop("outputs"), "spec.outputs: is missing: tensors of the reply"),
    (
        both(put("operators.0.name", "First"), put("operators.1.inputs", ["First.x"])),
        f'spec.operators[0].name: {DNS_LABEL}, found "First"',
    ),
    (
        both(put("operators.0.name", "f" * 64), put("operators.1.inputs", ["f" * 64 + ".x"])),
        "spec.operators[0].name: is 64 characters long, 63 at most are allowed",
    ),
    (drop("operators.0.model"), "spec.operators[0].model: is missing: how the model is started"),
    (
        put("operators.0.model.entrypoint", "models.First"),
        'spec.operators[0].model.entrypoint: expected a class as "module:Class", found "models.First"',
    ),
    (
        put("operators.0.model.entrypoint", "models.py:First"),
        'spec.operators[0].model.entrypoint: "models.py" is a file; a module is wanted; did you mean '
        '"models:First"?',
    ),
    (
        put("operators.0.model.entrypoint", ""),
        'spec.operators[0].model.entrypoint: expected a class as "module:Class", found nothing',
    ),
    (
        put("operators.0.model.config", ["dim"]),
        "spec.operators[0].model.config: expected a mapping, found a list",
    ),
    (
        put("operators.0.model.env", {"A": 3}),
        "spec.operators[0].model.env.A: expected text, found the number 3; write it in quotes",
    ),
    (
        put("operators.0.model.env", {"A-B": "3"}),
        'spec.operators[0].model.env.A-B: expected the name of an environment variable, found "A-B"',
    ),
    (put("operators.0.outputs", []), "spec.operators[0].outputs: is empty; expected at least one output"),
    (put("operators.0.replicas", 65), "spec.operators[0].replicas: must be from 1 to 64, found 65"),
    (put("operators.0.standby", 1), "spec.operators[0].standby: expected a mapping, found the number 1"),
    (put("operators.0.standby.hot", -1), "spec.operators[0].standby.hot: must be from 0 to 16, found -1"),
    (put("operators.0.standby.warm", 1), 'spec.operators[0].standby.warm: unknown field; known here: "hot"'),
    (
        put("operators.0.batch.maxRows", 0),
        "spec.operators[0].batch.maxRows: must be from 1 to 65536, found 0",
    ),
    (
        put("operators.0.batch.maxDelay", "-2ms"),
        'spec.operators[0].batch.maxDelay: expected a duration such as "150ms", "30s" or "5m", found "-2ms"',
    ),
    (
        put("operators.0.join", "combine"),
        'spec.operators[0].join: expected "Combine", "Interleave" or "First", found "combine"; did you mean '
        '"Combine"?',
    ),
    (
        put("operators.0.podTemplate", {"containers": []}),
        'spec.operators[0].podTemplate.containers: no such field here; expected "metadata" or "spec"',
    ),
    (
        put("operators.1.stateful", None),
        'spec.operators[1].stateful: expected a mapping, found nothing; write "{}" for the defaults',
    ),
    (
        put("operators.1.stateful", True),
        'spec.operators[1].stateful: expected a mapping, found true; write "{}" for the defaults',
    ),
    (
        put("operators.1.stateful.window", 0),
        "spec.operators[1].stateful.window: must be from 1 to 64, found 0",
    ),
    (
        put("operators.1.stateful.backups", 8),
        "spec.operators[1].stateful.backups: must be from 0 to 7, found 8",
    ),
    (
        put("operators.1.stateful.checkpoint", {"every": "60s"}),
        "spec.operators[1].stateful.checkpoint.dir: is missing: where to write them",
    ),
    (
        put("operators.1.stateful.checkpoint", {"every": "1ms", "dir": "/c"}),
        "spec.operators[1].stateful.checkpoint.every: must be from 1s to 86400s, found 1ms",
    ),
]

TOGETHER = [
    (
        put("operators.1.inputs.0", "frist.x"),
        'spec.operators[1].inputs[0]: no operator "frist"; did you mean "first"?',
    ),
    (
        put("operators.1.inputs.0", "zzz.x"),
        'spec.operators[1].inputs[0]: no operator "zzz"; there are "first" and "second"',
    ),
    (
        put("operators.0.inputs.0", "requests.x"),
        'spec.operators[0].inputs[0]: no operator "requests"; did you mean "request"?',
    ),
    (
        put("operators.0.inputs.0", "y"),
        'spec.operators[0].inputs[0]: no operator "y"; a tensor of the request is written "request.y"',
    ),
    (
        both(put("operators.0.outputs.0.name", "embedding"), put("operators.1.inputs.0", "embedding")),
        'spec.operators[1].inputs[0]: no operator "embedding"; an output is written "first.embedding"',
    ),
    (
        put("operators.1.inputs.0", "first.z"),
        'spec.operators[1].inputs[0]: operator "first" has no output "z"; it has "x"',
    ),
    (
        put("operators.0.inputs.0", "request.pixels"),
        'spec.operators[0].inputs[0]: the request has no tensor "pixels"; it has "x" and "y"',
    ),
    (
        put("operators.0.inputs.0", {"from": "request", "as": "all"}),
        'spec.operators[0].inputs[0]: "as" names one tensor, but "request" has "x" and "y"; write for '
        "example {from: request.x, as: all}",
    ),
    (
        put("operators.0.inputs.0", {"form": "request.x"}),
        'spec.operators[0].inputs[0].form: unknown field; did you mean "from"?',
    ),
    (
        put("operators.0.inputs.0", ["request.x"]),
        "spec.operators[0].inputs[0]: expected text or a mapping, found a list",
    ),
    (
        put("operators.0.inputs", []),
        'spec.operators[0].inputs: no path from request to "first": an operator without inputs never runs',
    ),
    (
        drop("operators.0.inputs"),
        "spec.operators[0].inputs: is missing: what it takes; all inputs from one upstream are one edge",
    ),
    (
        put("operators.1.inputs", ["first.x", "request.x"]),
        'spec.operators[1].inputs[1]: the name "x" is already taken by "first.x" (inputs[0]); give one of '
        "them another name: "
        "{from: request.x, as: ...}",
    ),
    (
        put("operators.1.inputs", ["first", "first.x"]),
        'spec.operators[1].inputs[1]: takes "first.x" a second time; the first is inputs[0]',
    ),
    (
        both(put("operators.1.name", "first"), put("outputs.0.from", "first.x")),
        'spec.operators[1].name: the name "first" is already taken by spec.operators[0]',
    ),
    (
        both(put("operators.1.name", "reply"), put("outputs.0.from", "reply.x")),
        'spec.operators[1].name: "reply" is reserved ("request", "reply", "frontend" and "manager" are); '
        "choose another name",
    ),
    (
        both(put("operators.1.name", "b-r1"), put("outputs.0.from", "b-r1.x")),
        'spec.operators[1].name: "b-r1" ends like the objects of another shape of a graph (-r and a number); '
        "choose another name",
    ),
    (
        put(
            "operators.1.outputs",
            [{"name": "x", "datatype": "FP32", "shape": []}, {"name": "x", "datatype": "FP32", "shape": []}],
        ),
        'spec.operators[1].outputs[1].name: the name "x" is already taken by spec.operators[1].outputs[0]',
    ),
    (
        put("operators.1.outputs.0", {"name": "x", "datatype": "INT64", "shape": [], "finite": True}),
        "spec.operators[1].outputs[0].finite: is for floating-point tensors; INT64 is always finite",
    ),
    (
        put("operators.1.replicas", 2),
        'spec.operators[1].replicas: "second" is stateful: one primary runs at a time, so this must be 1, '
        "found 2; "
        '"stateful.backups" says how many copies there are',
    ),
    (
        both(put("operators.1.stateful.backups", 0), put("recovery.whenUnprotected", "Block")),
        'spec.operators[1].stateful.backups: is 0, and "recovery.whenUnprotected: Block" waits for a '
        'backup: "second" would never answer; '
        "give it a backup or use Continue",
    ),
    (
        both(put("frontend.replicas", 1), put("recovery.whenUnprotected", "Block")),
        'spec.frontend.replicas: is 1, and "recovery.whenUnprotected: Block" waits for a second one: use at '
        "least 2, or Continue",
    ),
    (
        both(put("frontend.requestTimeout", "1s"), put("operators.0.batch.maxDelay", "1s")),
        "spec.operators[0].batch.maxDelay: 1s is not below frontend.requestTimeout (1s)",
    ),
    (
        both(put("frontend.maxInFlight", 2000), put("frontend.shards", 64)),
        'spec.frontend.maxInFlight: 2000 requests on 64 shards with 1 lanes are 128000 units in "first"; a '
        "queue holds 65536",
    ),
    (
        put("operators.0.inputs", ["request.x", {"from": "second.x", "as": "back"}]),
        'spec.operators[0].inputs[1]: cycle without feedback: "first" -> "second" -> "first"; '
        'only "feedback" of "second" may lead back, and only to the request',
    ),
    (
        put("operators.0.inputs", ["request.x", {"from": "first.x", "as": "back"}]),
        'spec.operators[0].inputs[1]: cycle without feedback: "first" -> "first"; only "feedback" of '
        '"first" may lead back, and only to the request',
    ),
    (
        put("outputs.0.from", "first.x"),
        'spec.operators[1]: "second" leads nowhere: nobody reads its outputs; add it to spec.outputs or to '
        "the inputs of another operator",
    ),
    (put("outputs.0.from", "secnd.x"), 'spec.outputs[0].from: no operator "secnd"; did you mean "second"?'),
    (
        put("outputs.0.from", "second.label"),
        'spec.outputs[0].from: operator "second" has no output "label"; it has "x"',
    ),
    (put("outputs.0.from", "second"), 'spec.outputs[0].from: name one tensor of "second": "second.x"'),
    (
        put("outputs.0.from", ["second.x", "second.x"]),
        'spec.outputs[0].from[1]: "second.x" stands in this list already',
    ),
    (
        put("outputs.0.from", ["second.x", "request.x"]),
        'spec.outputs[0].from[1]: a reply is made by operators; "request.x" is what the client sent',
    ),
    (
        put("outputs.0.from", []),
        'spec.outputs[0].from: expected "operator.tensor" or a list of such, found an empty list',
    ),
    (
        put("outputs.0.from", ["second.x", 3]),
        'spec.outputs[0].from[1]: expected "operator.tensor", found the number 3',
    ),
    (put("outputs.0.lanes", "all"), 'spec.outputs[0].lanes: expected "concat", found "all"'),
    (
        both(put("operators.0.outputs.0.shape", [5]), put("outputs.0.from", ["second.x", "first.x"])),
        'spec.outputs[0].from: all sources of a reply tensor must be alike, but "second.x" is FP32 [4] and '
        '"first.x" is FP32 [5]',
    ),
    (
        put("operators.1.feedback", {"to": "first", "inputs": {"x": "x"}}),
        'spec.operators[1].feedback.to: expected "request", found "first"',
    ),
    (
        put("operators.1.feedback", {"inputs": {"y": "x", "x": "x"}}),
        'spec.operators[1].feedback.inputs.y: "second.x" is FP32 [4], but the request\'s "y" is INT64 []',
    ),
    (
        put("operators.1.feedback", {"inputs": {"x": "z"}}),
        'spec.operators[1].feedback.inputs.x: operator "second" has no output "z"',
    ),
    (
        put("operators.1.feedback", {"inputs": {"x": "x", "pixels": "x"}}),
        'spec.operators[1].feedback.inputs.pixels: the request has no tensor "pixels"',
    ),
    (
        put("operators.1.feedback", {"inputs": {}}),
        'spec.operators[1].feedback.inputs: a request needs "x" too; only optional tensors may be left out',
    ),
    (
        put("operators.1.feedback", {"inputs": {"x": "x"}, "maxHops": 0}),
        "spec.operators[1].feedback.maxHops: must be from 1 to 64, found 0",
    ),
]

JOINS = [
    (
        [
            operator("a", ["request.x"]),
            operator("b", ["request.x"], [tensor("z")]),
            operator("m", ["a", "b"], join="Interleave"),
        ],
        {"lanes": "concat"},
        'spec.operators[2].inputs[1]: under Interleave every edge must bring the same names, but "a" brings '
        '"x" and "b" brings "z"; "as" renames',
    ),
    (
        [
            operator("a", ["request.x"]),
            operator("b", ["request.x"], [tensor("x", [5])]),
            operator("m", ["a", "b"], join="First"),
        ],
        {},
        'spec.operators[2].inputs[1]: under First every edge must bring the same tensors, but "x" is FP32 '
        '[4] from "a" and FP32 [5] from "b"',
    ),
    (
        [
            operator("a", ["request.x"]),
            operator("b", ["request.x"], []),
            operator("m", ["a", "b"], join="First"),
        ],
        {},
        "spec.operators[1].outputs: is empty; expected at least one output",
    ),
    (
        [operator("a", ["request.x"]), operator("m", ["a", "request.x"], join="Interleave")],
        {},
        'spec.outputs[0]: "m" runs 2 times for one request, as it is behind an Interleave; "lanes: concat" '
        "gives the rows of all its runs",
    ),
    (
        [
            operator("a", ["request.x"]),
            operator("m", ["a", "request.x"], join="Interleave"),
            operator("c", ["m", {"from": "a.x", "as": "a"}]),
        ],
        {"lanes": "concat"},
        'spec.operators[2].inputs[1]: under Combine all edges must have the same lanes, but "m" has 2 (a, '
        'request) and "a" has none; '
        'use "join: Interleave" here, or join before the lanes part',
    ),
    (
        [
            operator("a0", ["request.x"]),
            *(
                operator(f"{side}{n}", [f"m{n - 1}.x" if n > 1 else "a0.x"])
                for n in range(1, 8)
                for side in "ab"
            ),
            *(operator(f"m{n}", [f"a{n}", f"b{n}"], join="Interleave") for n in range(1, 8)),
        ],
        {"lanes": "concat"},
        'spec.operators[21].join: "m7" would run 128 times for one request (lanes multiply), at most 64 are '
        "allowed",
    ),
]

TOP = [
    ({"apiVersion": "hams.dev/v1"}, 'apiVersion: expected "hams.dev/v1alpha1", found "hams.dev/v1"'),
    ({"kind": "Servicegraph"}, 'kind: expected "ServiceGraph", found "Servicegraph"'),
    ({"sepc": {}}, 'sepc: unknown field; did you mean "spec"?'),
    ({"metadata": {}}, "metadata.name: is missing: the name of the graph"),
    (
        {"metadata": {"name": "My_Graph"}},
        f'metadata.name: {DNS_LABEL}, found "My_Graph"',
    ),
    ({"metadata": {"name": "test", "label": {}}}, 'metadata.label: unknown field; did you mean "labels"?'),
    ({"spec": None}, 'spec: expected a mapping, found nothing; write "{}" for the defaults'),
]


@pytest.mark.parametrize(
    ("change", "line"), FIELDS + TOGETHER, ids=[line.split(": ")[0] for _, line in FIELDS + TOGETHER]
)
def test_one_mistake_gives_one_line_that_says_where_and_what(change: Change, line: str) -> None:
    result = chain()
    change(result["spec"])
    assert problems(result) == [line]


@pytest.mark.parametrize(
    ("operators", "reply", "line"), JOINS, ids=[line.split(": ")[0] for *_, line in JOINS]
)
def test_edges_that_do_not_fit_are_named(operators: list[Json], reply: Json, line: str) -> None:
    assert problems(graph(*operators, reply=reply)) == [line]


@pytest.mark.parametrize(("change", "line"), TOP, ids=[line.split(":")[0] for _, line in TOP])
def test_the_envelope_is_checked_too(change: Json, line: str) -> None:
    assert problems(chain() | change) == [line]


def test_all_mistakes_come_at_once_in_order_of_the_file() -> None:
    text = """
apiVersion: hams.dev/v1alpha1
kind: ServiceGraph
metadata: {name: digits}
spec:
  frontend: {maxInFlightBytes: lots}
  inputs:
  - {name: pixels, datatype: FP32, shape: [64]}
  outputs:
  - {name: label, from: learner.labels}
  operators:
  - name: features
    model: {entrypoint: "digits.models:Features"}
    inputs: [request.pixel]
    outputs: [{name: embedding, datatype: FP32, shape: [32]}]
  - name: learner
    stateful: {}
    replicas: 3
    model: {entrypoint: "digits.models:Learner"}
    inputs: [feature.embedding]
    outputs: [{name: label, datatype: INT64, shape: []}]
"""
    with pytest.raises(InvalidGraph) as caught:
        load_text(text)
    assert str(caught.value).splitlines() == [
        'spec.frontend.maxInFlightBytes: expected an amount of memory such as "64Mi" or "1Gi", found "lots" '
        "(line 6)",
        'spec.outputs[0].from: operator "learner" has no output "labels"; did you mean "label"? (line 10)',
        'spec.operators[0].inputs[0]: the request has no tensor "pixel"; did you mean "pixels"? (line 14)',
        'spec.operators[1].replicas: "learner" is stateful: one primary runs at a time, so this must be 1, '
        "found 3; "
        '"stateful.backups" says how many copies there are (line 18)',
        'spec.operators[1].inputs[0]: no operator "feature"; did you mean "features"? (line 20)',
    ]


def test_every_cycle_is_reported_once() -> None:
    values = graph(
        operator("a", ["request.x", {"from": "b.x", "as": "b"}]),
        operator("b", ["a.x"]),
        operator("c", ["b.x", {"from": "d.x", "as": "d"}]),
        operator("d", ["c.x"]),
    )
    assert [line.split(";")[0] for line in problems(values)] == [
        'spec.operators[0].inputs[1]: cycle without feedback: "a" -> "b" -> "a"',
        'spec.operators[2].inputs[1]: cycle without feedback: "c" -> "d" -> "c"',
    ]


def test_on_kubernetes_each_model_needs_an_image() -> None:
    assert problems(chain(), on_kubernetes=True) == [
        'spec.operators[0].model.image: is missing: on Kubernetes "first" runs from a container image',
        'spec.operators[1].model.image: is missing: on Kubernetes "second" runs from a container image',
    ]


def test_a_document_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="document: expected a ServiceGraph, found a list"):
        load_text("[1, 2]")
