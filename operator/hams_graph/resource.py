"""The `ServiceGraph` resource, field by field (api.md, section 1): names, kinds, bounds, defaults and what
each field means.

This module is the typed twin of `crds/hams.dev_servicegraphs.yaml`; a test holds the two together. What the
fields mean *together* (names that resolve, edges that fit) is `validate`'s business.
"""

import enum
from typing import cast

from hams_graph.document import Document, Plain
from hams_graph.fields import (
    Duration,
    FieldRule,
    Flag,
    Json,
    Many,
    Notes,
    OneOf,
    Pairs,
    Part,
    Quantity,
    Text,
    Whole,
    field_of,
    list_items_max,
    part,
)
from hams_graph.problems import Path, did_you_mean, shown
from hams_protocol.graph import (
    AdmissionPolicy,
    Join,
    Mode,
    SchedulePolicy,
    Suspects,
    WhenLate,
    WhenLost,
    WhenUnprotected,
)
from hams_protocol.limits import (
    attempts_alone_max,
    checkpoint_batches,
    checkpoint_batches_max,
    window_versions_max,
)

name_chars_max = 63
"""Length of a graph's or operator's name: a DNS label (RFC 1123)."""

tensor_name_chars_max = 128
"""Length of a tensor's name."""

operators_max = 64
"""Operators of one graph."""

shape_dims_max = 8
"""Dimensions of one row of a tensor."""

shape_dim_max = 2**31 - 1
"""Size of one dimension."""

frontends_max = 16
"""Frontend instances; each holds every shard's log or a copy of it."""

shards_max = 64
"""Shards of the frontend's log."""

managers_max = 9
"""Manager instances."""

instances_max = 64
"""Active instances of a stateless operator, and its slots."""

backups_max = 7
"""Backups of one state: every version is copied to each."""

standbys_max = 16
"""Warmed standbys of one operator."""

batch_rows_max = 65_536
"""Largest `batch.maxRows`."""

batch_delay_max_s = 10.0
"""Largest `batch.maxDelay`."""

profile_memory_max_s = 86_400.0
"""Largest `batch.memory`."""

unit_time_min_s = 0.0001
unit_time_max_s = 3600.0
"""Bounds of `batch.bounds.p99`."""

app_chars_max = 64
"""Length of the name of a kind of requests."""

apps_max = 16
"""Kinds of requests in `frontend.apps`."""

app_cost_max = 1_000
"""Largest `frontend.apps[].cost`."""

cost_steps_max = 4
"""Steps of `frontend.cost`."""

request_timeout_min_s = 0.01
request_timeout_max_s = 3600.0
"""Bounds of `frontend.requestTimeout`."""
deadline_min_s = 0.001
"""The shortest `frontend.deadline`."""

suspect_after_min_s = 0.06
suspect_after_max_s = 60.0
"""Bounds of `recovery.suspectAfter`: at least two heartbeats must have been missed."""

evict_after_min_s = 1.0
evict_after_max_s = 86_400.0
"""Bounds of `recovery.evictAfter`; Kubernetes counts whole seconds."""

in_flight_max = 32_768
"""Largest `frontend.maxInFlight`, per shard."""

replies_kept_max = 1_000_000
"""Largest `frontend.repliesKept`, per shard."""

bytes_min = 4096
bytes_max = 1 << 40
"""Bounds of every amount of memory in a graph file."""

frontend_held_bytes_max = bytes_max
"""What one frontend may hold of all shards: open requests and kept replies."""

checkpoint_every_min_s = 1.0
checkpoint_every_max_s = 86_400.0
"""Bounds of `stateful.checkpoint.every`."""

checkpoints_max = 100
"""Largest `stateful.checkpoint.keep`."""

feedback_hops_max = 64
"""Largest `feedback.maxHops`."""


GROUP = "hams.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ServiceGraph"


class Datatype(enum.StrEnum):
    """Datatypes of the Open Inference Protocol that a tensor may have."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"


FLOATS = frozenset((Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64))

_SLIPS = {
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    **{f"{kind}{bits}": f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "float": "FP32",
    "half": "FP16",
    "bfloat16": "BF16",
    "double": "FP64",
    "int": "INT64",
    "long": "INT64",
    "bool": "BOOL",
    "boolean": "BOOL",
    "string": "BYTES",
    "str": "BYTES",
    "text": "BYTES",
    "bytes": "BYTES",
}


class Lanes(enum.StrEnum):
    """What a reply tensor does with several executions for one request."""

    CONCAT = "concat"


class Delta(enum.StrEnum):
    """How states travel."""

    AUTO = "Auto"
    OFF = "Off"


class FeedbackTarget(enum.StrEnum):
    """Where a feedback edge leads."""

    REQUEST = "request"


DNS_LABEL = Text(
    "a DNS label (lower-case letters, digits and inner hyphens, 63 characters at most)",
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    name_chars_max,
    1,
)
TENSOR_NAME = Text(
    "a tensor name (letters, digits, _ . -, not starting with . or -)",
    r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
    tensor_name_chars_max,
    1,
)
_SECRET_NAME = Text("the name of a Secret", r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", 253, 1)
_ENTRYPOINT = Text(
    'a class as "module:Class"', r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", 256, 1
)
_ENV_NAME = Text("the name of an environment variable", r"[A-Za-z_][A-Za-z0-9_]*", 256, 1)
_DATATYPE = OneOf(Datatype, _SLIPS)
_BYTES = Quantity(bytes_min, bytes_max)


class RowShape:
    """The shape of one row: a list of sizes, -1 for a variable one. The stand-in is None: unknown."""

    def read(self, value: Plain, path: Path, notes: Notes) -> tuple[int, ...]:
        """The shape; UNKNOWN_SHAPE if it could not be read."""
        if not isinstance(value, list):
            notes.say(
                path,
                "expected the shape of one row as a list, such as [64] or [-1, 3] ([] for a single "
                f"number), found {shown(value)}",
            )
            return UNKNOWN_SHAPE
        if len(value) > shape_dims_max:
            notes.say(path, f"has {len(value)} dimensions, {shape_dims_max} at most are allowed")
            return UNKNOWN_SHAPE
        for position, size in enumerate(value):
            if (
                isinstance(size, bool)
                or not isinstance(size, int)
                or not (size == -1 or 1 <= size <= shape_dim_max)
            ):
                notes.say(
                    (*path, position),
                    f"expected a size of at least 1, or -1 for a variable one, found {shown(size)}",
                )
                return UNKNOWN_SHAPE
        return tuple(cast(list[int], value))


SHAPE = RowShape()
UNKNOWN_SHAPE = (-2,)


class Sources:
    """Text or a non-empty list of texts."""

    def read(self, value: Plain, path: Path, notes: Notes) -> tuple[str, ...]:
        """The texts, in order; none as stand-in."""
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not value:
            notes.say(
                path,
                'expected "operator.tensor" or a list of such, found '
                f"{'an empty list' if value == [] else shown(value)}",
            )
            return ()
        if len(value) > list_items_max:
            notes.say(path, f"has {len(value)} items, {list_items_max} at most are allowed")
        for position, item in enumerate(value[:list_items_max]):
            if not isinstance(item, str):
                notes.say((*path, position), f'expected "operator.tensor", found {shown(item)}')
        return tuple(item if isinstance(item, str) else "" for item in value[:list_items_max])


SOURCES = Sources()


@part
class RequestTensor:
    """A tensor of a client request."""

    name: str = field_of(TENSOR_NAME, about="name of the tensor in the request")
    datatype: Datatype = field_of(_DATATYPE, about="datatype, as in the Open Inference Protocol")
    shape: tuple[int, ...] = field_of(
        SHAPE, about="shape of one row, without the leading dimension of rows; -1 is variable"
    )
    optional: bool = field_of(Flag(), default=False, about="whether a request may leave it out")


@part
class ReplyTensorSection:
    """A tensor of the reply."""

    name: str = field_of(TENSOR_NAME, about="name of the tensor in the reply")
    sources: tuple[str, ...] = field_of(
        SOURCES, key="from", about='"operator.tensor", or a list of such: the first that has a value'
    )
    lanes: Lanes | None = field_of(
        cast(FieldRule[Lanes | None], OneOf(Lanes)),
        default=None,
        about="concat: the rows of all lanes behind an Interleave, in the order of its inputs",
    )


@part
class OutputTensor:
    """A tensor that an operator makes."""

    name: str = field_of(TENSOR_NAME, about="name of the tensor")
    datatype: Datatype = field_of(_DATATYPE, about="datatype, as in the Open Inference Protocol")
    shape: tuple[int, ...] = field_of(
        SHAPE, about="shape of one row, without the leading dimension of rows; -1 is variable"
    )
    finite: bool = field_of(
        Flag(), default=False, about="whether NaN or infinity in it is an error of the model"
    )


@part
class InputSection:
    """What an operator takes from upstream."""

    source: str = field_of(
        Text('an input as "upstream.tensor", or "upstream" for all of its tensors', r"[\s\S]+", 256, 1),
        key="from",
        about='"upstream.tensor", or "upstream" for all of its tensors; upstream is an operator or "request"',
    )
    name: str = field_of(
        TENSOR_NAME, key="as", default="", about="what the model calls it; the tensor's own name by default"
    )
    optional: bool = field_of(
        Flag(), default=False, about="whether the operator runs without it (it is None then)"
    )


@part
class WarmUp:
    """A run before the model is ready. Its effects are undone."""

    enabled: bool = field_of(
        Flag(),
        default=True,
        about="whether the model runs one row before it is ready, so that wrong outputs are seen at the "
        "start",
    )
    row: dict[str, Plain] = field_of(
        Json(),
        default={},
        about="that row: a value for each input, without the dimension of rows; made up by default",
    )


@part
class ModelSection:
    """How the model is started."""

    entrypoint: str = field_of(_ENTRYPOINT, about='the model class, as "module:Class"')
    config: dict[str, Plain] = field_of(Json(), default={}, about="handed to initialize")
    image: str = field_of(
        Text("the name of an image", r"\S+", 1024, 1),
        default="",
        about="container image; needed on Kubernetes only",
    )
    python: str = field_of(
        Text("the path of a Python interpreter", r"[\s\S]+", 1024, 1),
        default="",
        about="interpreter for local runs; by default the one that runs hams",
    )
    env: tuple[tuple[str, str], ...] = field_of(
        Pairs(_ENV_NAME, Text("text", most=32768)), default=(), about="environment variables to add"
    )
    warm_up: WarmUp = field_of(
        Part(WarmUp), default=WarmUp(), about="a run before it is ready, unless its state is above 256 MiB"
    )


@part
class BoundsSection:
    """What is known of an operator's times before anything was measured."""

    p99_s: float = field_of(
        Duration(unit_time_min_s, unit_time_max_s), about="time of one unit that one in a hundred exceeds"
    )


@part
class BatchSection:
    """How units share a run of the model."""

    max_rows: int = field_of(
        Whole(1, batch_rows_max), default=64, about="rows of a batch; a larger request runs alone"
    )
    max_delay_s: float = field_of(
        Duration(0.0, batch_delay_max_s),
        default=0.002,
        about="how long a unit waits for company; 0 takes what is queued; under Distribution the most that "
        "the model idles for it, where that is worth it; Deadline does not wait",
    )
    policy: SchedulePolicy = field_of(
        OneOf(SchedulePolicy),
        default=SchedulePolicy.FIFO,
        about="who runs next: Fifo, the oldest; Deadline and Distribution, what can still be in time",
    )
    when_late: WhenLate | None = field_of(
        cast(FieldRule[WhenLate | None], OneOf(WhenLate)),
        default=None,
        about="a unit that cannot be in time: Run, when nothing else is to run, or Shed, answered by a 504; "
        "absent: Shed under Deadline and Distribution where no state is at or behind the operator, else Run; "
        "a state at or behind an operator that sheds learns from what was not shed only",
    )
    app_by: str = field_of(
        Text('"parameter:" and the name of a request parameter', r"parameter:\S+", 128),
        default="",
        about="Distribution only: where a request says what kind it is; each kind has its own times",
    )
    feature: str = field_of(
        Text(
            '"none", "rows", or "parameter:" and a name',
            r"(none|rows|parameter:\S+)",
            128,
        ),
        default="none",
        about="Distribution only: a number that tells how long a request takes, learnt from those that make "
        "a batch of their own; rows: its rows, where they tell more than those of its batch",
    )
    memory_s: float = field_of(
        Duration(0.0, profile_memory_max_s),
        default=600.0,
        about="times that were measured longer ago are forgotten; 0 forgets nothing",
    )
    keep_order: str = field_of(
        Text('"parameter:" and the name of a request parameter', r"parameter:\S+", 128),
        default="",
        about="Deadline and Distribution only: requests of one value, of a session say, run in order of "
        "arrival",
    )
    bounds: BoundsSection | None = field_of(
        cast(FieldRule[BoundsSection | None], Part(BoundsSection)),
        default=None,
        about="what is known of its times before anything was measured",
    )


@part
class Standby:
    """Warmed processes that wait for a role."""

    hot: int = field_of(Whole(0, standbys_max), default=0, about="how many")


@part
class CheckpointSection:
    """Durable versions on disk, written by a backup."""

    every_s: float = field_of(
        Duration(checkpoint_every_min_s, checkpoint_every_max_s), about="time between two"
    )
    keep: int = field_of(Whole(1, checkpoints_max), default=2, about="how many to keep")
    dir: str = field_of(Text("a directory", r"[\s\S]+", 4096, 1), about="where to write them")
    batches: int | None = field_of(
        cast(FieldRule[int | None], Whole(1, checkpoint_batches_max)),
        default=None,
        about="mode LineageStash only, in the place of `every`: one after so many batches; absent: "
        f"{checkpoint_batches}",
    )


@part
class Stateful:
    """What a stateful operator adds; its presence makes an operator stateful."""

    backups: int = field_of(
        Whole(0, backups_max), default=1, about="copies of the state beside the primary's"
    )
    window: int = field_of(
        Whole(1, window_versions_max), default=4, about="versions that may be executed but not yet durable"
    )
    checkpoint: CheckpointSection | None = field_of(
        cast(FieldRule[CheckpointSection | None], Part(CheckpointSection)),
        default=None,
        about="checkpoints on disk; off by default",
    )
    delta: Delta = field_of(
        OneOf(Delta),
        default=Delta.AUTO,
        about="Auto: captures are compared, and what changed is copied and sent; Off: states are copied and "
        "sent whole",
    )


@part
class FeedbackSection:
    """An edge back to the request: outputs become a new internal request."""

    to: FeedbackTarget = field_of(
        OneOf(FeedbackTarget), default=FeedbackTarget.REQUEST, about="where it leads"
    )
    inputs: tuple[tuple[str, str], ...] = field_of(
        Pairs(TENSOR_NAME, TENSOR_NAME), about="request tensor: output of this operator"
    )
    max_hops: int = field_of(
        Whole(1, feedback_hops_max), default=8, about="how deep; beyond it the reply is an error"
    )


@part
class OperatorSection:
    """A vertex of the graph: one model."""

    name: str = field_of(DNS_LABEL, about="name, a DNS label")
    model: ModelSection = field_of(Part(ModelSection), about="how the model is started")
    inputs: tuple[InputSection, ...] = field_of(
        Many(Part(InputSection, short="from"), "input"),
        about="what it takes; all inputs from one upstream are one edge",
    )
    outputs: tuple[OutputTensor, ...] = field_of(Many(Part(OutputTensor), "output", 1), about="what it makes")
    join: Join = field_of(OneOf(Join), default=Join.COMBINE, about="how it combines its edges")
    stateful: Stateful | None = field_of(
        cast(FieldRule[Stateful | None], Part(Stateful)),
        default=None,
        about="present if the model keeps state",
    )
    replicas: int = field_of(
        Whole(1, instances_max), default=1, about="active instances of a stateless operator"
    )
    standby: Standby = field_of(
        Part(Standby), default=Standby(), about="warmed processes that wait for a role"
    )
    batch: BatchSection = field_of(
        Part(BatchSection), default=BatchSection(), about="how requests share a run of the model"
    )
    feedback: FeedbackSection | None = field_of(
        cast(FieldRule[FeedbackSection | None], Part(FeedbackSection)),
        default=None,
        about="an edge back to the request",
    )
    pod_template: dict[str, Plain] = field_of(
        Json(("metadata", "spec")),
        default={},
        about="Kubernetes only: strategic merge over the pods' defaults",
    )


@part
class AppSection:
    """What one kind of request is worth, and how long its clients wait."""

    name: str = field_of(Text("text", r"\S+", app_chars_max, 1), about="the value of the parameter")
    deadline_s: float | None = field_of(
        cast(FieldRule[float | None], Duration(deadline_min_s, request_timeout_max_s)),
        default=None,
        about="how long its clients wait that name no deadline of their own; absent: frontend.deadline",
    )
    cost: int = field_of(
        Whole(1, app_cost_max),
        default=1,
        about="one of it in time is worth so many others, to operators whose batch.appBy is the same",
    )


@part
class CostStep:
    """An instant from which on an answer is worth less."""

    after_s: float = field_of(
        Duration(deadline_min_s, request_timeout_max_s), about="how long after the request came"
    )
    cost: int = field_of(Whole(1, app_cost_max), about="what is lost then, in proportion to the other steps")


@part
class Frontend:
    """The inference endpoint."""

    replicas: int = field_of(Whole(1, frontends_max), default=2, about="frontend instances")
    shards: int = field_of(
        Whole(1, shards_max),
        default=2,
        about="shards of the request log; fixed for the life of the graph",
    )
    request_timeout_s: float = field_of(
        Duration(request_timeout_min_s, request_timeout_max_s),
        default=30.0,
        about="after this a client gets 504",
    )
    deadline_s: float | None = field_of(
        cast(FieldRule[float | None], Duration(deadline_min_s, request_timeout_max_s)),
        default=None,
        about="how long a client waits that names no deadline of its own; absent: requestTimeout",
    )
    cost: tuple[CostStep, ...] = field_of(
        Many(Part(CostStep), "step of cost", most=cost_steps_max),
        default=(),
        about="an answer loses its worth in these steps, for policy: Distribution; "
        "the last one is the deadline",
    )
    admission: AdmissionPolicy = field_of(
        OneOf(AdmissionPolicy),
        default=AdmissionPolicy.OPEN,
        about="which requests are admitted: Open, all that fit; Promise, those that can probably be in time",
    )
    app_by: str = field_of(
        Text('"parameter:" and the name of a request parameter', r"parameter:\S+", 128),
        default="",
        about="where a request says what kind it is: for apps, and each kind is promised by its own times",
    )
    apps: tuple[AppSection, ...] = field_of(
        Many(Part(AppSection), "kind of request", most=apps_max),
        default=(),
        about="kinds of requests that have a deadline or a cost of their own",
    )
    max_in_flight: int = field_of(
        Whole(1, in_flight_max),
        default=1024,
        about="open requests per shard; beyond it a client gets 429",
    )
    max_in_flight_bytes: int = field_of(
        _BYTES, default=256 << 20, about="memory of open requests per shard; beyond it a client gets 429"
    )
    max_request_bytes: int = field_of(
        _BYTES, default=64 << 20, about="size of one request; beyond it a client gets 413"
    )
    replies_kept: int = field_of(
        Whole(0, replies_kept_max), default=10_000, about="replies kept per shard for repeated keys"
    )
    replies_kept_bytes: int = field_of(_BYTES, default=64 << 20, about="memory of the replies kept per shard")
    token_secret: str = field_of(
        _SECRET_NAME,
        default="",
        about="Kubernetes only: a Secret beside the graph; who bears one of its values may ask, without it "
        "anybody may",
    )
    hide_model_errors: bool = field_of(
        Flag(),
        default=False,
        about="whether clients learn only that a model failed, not what its exception says",
    )
    service: dict[str, Plain] = field_of(
        Json(("metadata", "spec")),
        default={},
        about="Kubernetes only: strategic merge over the Service's defaults",
    )
    pod_template: dict[str, Plain] = field_of(
        Json(("metadata", "spec")),
        default={},
        about="Kubernetes only: strategic merge over the defaults of frontends' pods (container `frontend`)",
    )


@part
class Managers:
    """The managers: processes that confirm failures and move roles."""

    replicas: int = field_of(
        Whole(1, managers_max), default=3, about="manager instances; all but one may fail"
    )
    pod_template: dict[str, Plain] = field_of(
        Json(("metadata", "spec")),
        default={},
        about="Kubernetes only: strategic merge over the defaults of managers' pods (container `manager`)",
    )


@part
class Recovery:
    """What happens at a failure."""

    suspect_after_s: float = field_of(
        Duration(suspect_after_min_s, suspect_after_max_s),
        default=0.15,
        about="silence after which an instance is probed",
    )
    max_attempts: int = field_of(
        Whole(1, attempts_alone_max),
        default=2,
        about="deaths of a model on a request that runs alone, after the one that made it suspect, until it "
        "is an error",
    )
    when_unprotected: WhenUnprotected = field_of(
        OneOf(WhenUnprotected),
        default=WhenUnprotected.CONTINUE,
        about="whether a primary without a backup in sync goes on",
    )
    when_lost: WhenLost = field_of(
        OneOf(WhenLost), default=WhenLost.STOP, about="whether a lost state stops the graph or starts over"
    )
    evict_after_s: float = field_of(
        Duration(evict_after_min_s, evict_after_max_s),
        default=30.0,
        about="Kubernetes only: how long pods stay on a node that is not ready or cannot be reached, once "
        "Kubernetes says so",
    )
    suspects: Suspects = field_of(
        OneOf(Suspects),
        default=Suspects.WAIT,
        about="whether a request of which one instance may have died waits where no other instance holds the "
        "state, or runs",
    )


@part
class GraphSpec:
    """What the graph should be."""

    mode: Mode = field_of(
        OneOf(Mode),
        default=Mode.NON_STOP,
        about="how states are protected; None protects nothing, the others but NonStop are baselines for "
        "measurements",
    )
    frontend: Frontend = field_of(Part(Frontend), default=Frontend(), about="the inference endpoint")
    managers: Managers = field_of(
        Part(Managers), default=Managers(), about="who confirms failures and moves roles"
    )
    recovery: Recovery = field_of(Part(Recovery), default=Recovery(), about="what happens at a failure")
    inputs: tuple[RequestTensor, ...] = field_of(
        Many(Part(RequestTensor), "tensor of a request", 1), about="tensors of a client request"
    )
    outputs: tuple[ReplyTensorSection, ...] = field_of(
        Many(Part(ReplyTensorSection), "tensor of the reply", 1), about="tensors of the reply"
    )
    operators: tuple[OperatorSection, ...] = field_of(
        Many(Part(OperatorSection), "operator", 1, operators_max), about="the models"
    )


_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_METADATA = (
    *(
        "name",
        "namespace",
        "labels",
        "annotations",
        "uid",
        "generateName",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
    ),
    *("deletionGracePeriodSeconds", "finalizers", "managedFields", "ownerReferences", "selfLink"),
)


@part
class ServiceGraph:
    """The whole resource, defaults filled in. What only Kubernetes writes (status, other metadata) is not
    looked at."""

    name: str = field_of(DNS_LABEL, about="name of the graph")
    namespace: str = field_of(DNS_LABEL, default="", about="namespace, if given")
    uid: str = field_of(Text("text"), default="", about="the resource's uid, if Kubernetes gave one")
    spec: GraphSpec = field_of(Part(GraphSpec), about="what the graph should be")


def read_resource(notes: Notes) -> ServiceGraph:
    """The document as a resource; what is wrong is in `notes`, and then the object serves for further checks
    only."""
    root = notes.document.root
    if not isinstance(root, dict):
        notes.say((), f"expected a {KIND}, found {shown(root)}")
        root = {"apiVersion": API_VERSION, "kind": KIND}
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if root.get(key) != expected:
            notes.say(
                (key,),
                f'expected "{expected}"' + (f", found {shown(root[key])}" if key in root else ": is missing"),
            )
    for key in root:
        if key not in _TOP:
            notes.say((key,), f"unknown field{did_you_mean(key, _TOP)}")
    metadata = root.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        notes.say(("metadata", "name"), "is missing: the name of the graph")
    metadata = metadata if isinstance(metadata, dict) else {}
    for key in metadata:
        if key not in _METADATA:
            notes.say(("metadata", key), f"unknown field{did_you_mean(key, _METADATA)}")
    if "spec" not in root:
        notes.say(("spec",), "is missing: what the graph should be")
    return ServiceGraph(
        name=DNS_LABEL.read(metadata["name"], ("metadata", "name"), notes) if metadata.get("name") else "",
        namespace=DNS_LABEL.read(metadata["namespace"], ("metadata", "namespace"), notes)
        if metadata.get("namespace")
        else "",
        uid=str(metadata.get("uid") or ""),
        spec=Part(GraphSpec).read(
            root.get("spec"), ("spec",), notes if "spec" in root else Notes(Document(None))
        ),
    )
