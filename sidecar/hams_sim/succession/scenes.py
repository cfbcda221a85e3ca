"""Scenes of a change of shape, by name: `hams sim --fault change-mixed`."""

from hams_sim.faults import Fault
from hams_sim.succession.plan import Kinds

OLD = ("old/primary:a", "old/backup:a", "old/primary:F", "old/any:F", "old/leader")
NEW = ("new/primary:a", "new/backup:a", "new/primary:F", "new/any:F", "new/leader")
EVERYBODY = (*OLD, *NEW)

KILLS = ("kill", EVERYBODY)
WAITING = ("kill", ("waiting",))
CONTROLLER = tuple((kind, ("controller",)) for kind in ("kill", "pause", "cut-etcd", "slow-watch"))

KINDS: dict[str, Kinds] = {
    "change": Kinds(
        "a change of shape without a fault",
        twice=0.3,
        timeouts_s=(30.0,),
        strict=True,
        answers_s=12.0,
        impatient=0.2,
        calls=(80, 120),
        span_s=(0.7, 1.0),
    ),
    "change-passing": Kinds(
        "frontends of the next shape die as requests are passed on to them",
        (KILLS,),
        always=(
            Fault(0.02, "kill", "new/any:F", trigger="done"),
            Fault(0.3, "kill", "new/any:F", trigger="done"),
        ),
        least=0,
        most=1,
        keyless=0.4,
        frontends=(3,),
        timeouts_s=(30.0,),
    ),
    "change-stale": Kinds(
        "the controller judges by what is old",
        (("kill", EVERYBODY),),
        phases=("close", "close", "hold"),
        always=(Fault(0.0, "slow-watch", "controller", span_s=8.0, amount=300.0),),
        most=3,
        twice=0.0,
    ),
    "change-kills": Kinds("processes of either shape die", (KILLS, KILLS, WAITING), most=4),
    "change-controller": Kinds(
        "the controller dies, stands still, or is cut off", (*CONTROLLER, KILLS), most=4
    ),
    "change-pauses": Kinds(
        "processes of either shape stand still or are cut off",
        tuple((kind, EVERYBODY) for kind in ("pause", "pause-late", "isolate", "isolate-late", "cut-etcd")),
        most=4,
    ),
    "change-etcd": Kinds(
        "etcd is away, outcomes are unknown, watches are late",
        (("etcd-away", ("",)), ("etcd-unknown", ("",)), ("slow-watch", EVERYBODY), KILLS),
        most=4,
    ),
    "change-refused": Kinds("a model takes the state of the shape before not over", (KILLS,), refuses=0.8),
    "change-twice": Kinds(
        "two changes in a row, and keys that expire",
        (KILLS, WAITING),
        least=0,
        most=2,
        twice=1.0,
        second_at=("hold", "close", "done", "done", "done"),
        replies_kept=(3, 6, 10_000),
    ),
    "change-abandoned": Kinds(
        "nobody goes on with what the controller has begun",
        (),
        twice=0.0,
        always=(
            Fault(0.1, "kill", "controller", span_s=12.0, trigger="hold"),
            Fault(0.1, "kill", "controller", span_s=12.0, trigger="close"),
        ),
        timeouts_s=(1.5, 3.0),
        answers_s=4.0,
        span_s=(6.0,),
    ),
    "change-unheard": Kinds(
        "a frontend that hears nothing of etcd goes on, and the owner of its shard dies at the switch",
        (("kill", OLD), ("isolate", NEW), ("kill", ("waiting",)), ("slow-watch", ("controller",))),
        always=(
            Fault(0.1, "cut-etcd", "old/any:F", span_s=8.0),
            Fault(0.4, "slow-record", "old/any:F", span_s=8.0, amount=1000.0),
            Fault(0.4, "slow-record", "old/any:F", span_s=8.0, trigger="hold", amount=2000.0),
            Fault(0.06, "kill", "old/primary:F", trigger="close"),
        ),
        shards=(1,),
        least=0,
        most=2,
        twice=0.0,
        timeouts_s=(30.0, 6.0),
        frontends=(3,),
        span_s=(3.0, 5.0),
    ),
    "change-deposed": Kinds(
        "a shard's owner stands still with an entry on its way, is deposed, and goes on after the switch",
        (KILLS, *((kind, EVERYBODY) for kind in ("pause-late", "isolate-late", "cut-etcd"))),
        always=(
            Fault(
                0.3,
                "none",
                "old/primary:F",
                span_s=1.6,
                also=(Fault(0.0, "pause-late", "primary:F", span_s=1.5, trigger="LogAppend"),),
            ),
        ),
        least=0,
        most=1,
        keyless=0.2,
        timeouts_s=(30.0, 6.0),
        calls=(60, 90),
        span_s=(0.6,),
    ),
    "change-deleted": Kinds(
        "the graph is deleted during the change",
        (KILLS, *CONTROLLER, ("etcd-unknown", ("",))),
        always=(Fault(0.5, "delete", "resource", trigger="close"),),
        most=2,
    ),
    "change-mixed": Kinds(
        "faults of all kinds at a change of shape",
        (
            KILLS,
            KILLS,
            WAITING,
            *CONTROLLER,
            ("pause", EVERYBODY),
            ("pause-late", EVERYBODY),
            ("isolate", EVERYBODY),
            ("isolate-late", EVERYBODY),
            ("cut-etcd", EVERYBODY),
            ("etcd-away", ("",)),
            ("etcd-unknown", ("",)),
            ("slow-watch", EVERYBODY),
            ("slow-record", ("old/any:F", "old/any:F", "new/any:F")),
            ("forget", ("record",)),
            ("kill-model", EVERYBODY),
            ("drain", EVERYBODY),
        ),
        most=5,
        twice=0.4,
        second_at=("hold", "close", "back", "done", "done"),
        refuses=0.05,
        replies_kept=(10_000, 10_000, 5),
    ),
}
"""What `hams sim --fault` knows of a change of shape."""
