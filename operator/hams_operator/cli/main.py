"""The `hams` command: what can be typed. Each command imports its work when it is called, so that
`hams --help` is quick.

No stack trace reaches a user: what goes wrong in a way that is known is a `CommandError`, one line on stderr
and an exit code; what the operating system refuses is one line too.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from hams_load.errors import BadData
from hams_operator.cli.output import CommandError, Output
from hams_operator.cli.runs import Target
from hams_operator.extras import extra_of, missing, sentence
from hams_operator.plan.names import DEFAULT_ETCD, DEFAULT_IMAGE

app = typer.Typer(
    name="hams",
    help="HAMS: graphs of models as one service that never forgets.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
history_app = typer.Typer(help="Recorded histories.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(history_app, name="history")
chaos_app = typer.Typer(
    help="Faults against a graph on a cluster, under load.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(chaos_app, name="chaos")
image_app = typer.Typer(help="Images of models, for Kubernetes.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(image_app, name="image")

_RAW = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The graph: a ServiceGraph in YAML.", show_default=False)
]


def _graphs(incomplete: str) -> list[str]:
    """What a shell offers for --graph: graphs that run here."""
    from hams_operator.local.home import running  # noqa: PLC0415

    return [run.graph for run in running() if run.graph.startswith(incomplete)]


def _operators(incomplete: str) -> list[str]:
    """What a shell offers for OPERATOR: those of the graphs that run here, and the two kinds that every graph
    has."""
    from hams_graph import InvalidGraph, load  # noqa: PLC0415
    from hams_operator.local.home import running  # noqa: PLC0415

    names = ["frontend", "manager"]
    for run in running():
        with contextlib.suppress(InvalidGraph, OSError):  # its file may have gone since
            names += [op.name for op in load(Path(run.file)).data.operators]
    return [name for name in names if name.startswith(incomplete)]


GraphOption = Annotated[
    str | None,
    typer.Option(
        "--graph",
        metavar="NAME",
        help="Which graph; without it the one that runs.",
        show_default=False,
        autocompletion=_graphs,
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", help="How to print.")]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A cluster of the kubeconfig, instead of this machine.",
        show_default=False,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="Of the cluster (without it the context's), instead of this machine.",
        show_default=False,
    ),
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="HAMS_TOKEN",
        help="Borne by each request, if the graph asks for one.",
        show_envvar=True,
    ),
]
Code = typer.Exit


def _version(asked: bool) -> None:
    """The version, and which form of the core runs here: it decides how fast a graph is."""
    if not asked:
        return
    import platform  # noqa: PLC0415
    from importlib.metadata import version  # noqa: PLC0415

    import hams_protocol.graph as core  # noqa: PLC0415

    form = "Python sources" if str(core.__file__).endswith(".py") else "machine code"
    sys.stdout.write(f"hams {version('hams')}\ncore: {form}\nPython {platform.python_version()}\n")
    raise Code(0)


@app.callback()
def hams(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """HAMS: graphs of models as one service that never forgets."""


@app.command()
def demo(
    output: OutputOption = Output.TEXT,
    duration: Annotated[str, typer.Option(help="How long the traffic runs.")] = "20s",
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 50.0,
) -> None:
    """Run a graph on real data, kill a primary, see what was kept."""
    lacking = missing("local") or tuple(name for name in missing("examples") if name in ("torch", "sklearn"))
    if lacking:
        raise CommandError(sentence("hams demo", lacking, extra_of(lacking[0]) or "examples"))
    from hams_operator.cli import demo as work  # noqa: PLC0415

    raise Code(work.demo(duration, rate, output))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.", show_default=False)],
    output: OutputOption = Output.TEXT,
) -> None:
    """Write a small graph to start from."""
    from hams_operator.cli import begin  # noqa: PLC0415

    raise Code(begin.init(folder, output))


@app.command()
def validate(
    file: FileArgument,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Also what only Kubernetes needs, such as images.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """All errors of a graph, or what it means."""
    from hams_operator.cli import begin  # noqa: PLC0415

    raise Code(begin.validate(file, output, kubernetes))


@app.command()
def up(
    file: FileArgument,
    port: Annotated[
        int | None,
        typer.Option(help="HTTP port; gRPC takes the next one. Without it free ports.", show_default=False),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Port of the page of all metrics; without it a free one.", show_default=False),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the graph is ready and redundant; it runs on.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option(help="How long that may take; 60s with --detach.", show_default=False)
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Record a history there.", show_default=False)
    ] = None,
    restore: Annotated[bool, typer.Option("--restore", help="Begin from the newest checkpoints.")] = False,
    etcd: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Use this etcd instead of an own one.", show_default=False),
    ] = None,
    check: Annotated[
        bool | None,
        typer.Option(
            "--check/--no-check",
            help="Prove each model first, as `hams-model check` does. By default if a person starts it.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run a graph on this machine; Ctrl-C ends it."""
    from hams_operator.cli import up as work  # noqa: PLC0415

    raise Code(work.up(file, port, detach, timeout, history, restore, etcd, check, output, metrics_port))


@app.command()
def status(
    graph: GraphOption = None,
    every: Annotated[bool, typer.Option("--all", help="All graphs that run here.")] = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """What runs, in which role, and whether it is redundant."""
    from hams_operator.cli import inspect  # noqa: PLC0415

    raise Code(inspect.status(Target(context, namespace), graph, every, output))


@app.command()
def logs(
    operator: Annotated[
        str,
        typer.Argument(
            metavar="OPERATOR",
            help="An operator, frontend, manager, supervisor or etcd.",
            show_default=False,
            autocompletion=_operators,
        ),
    ],
    graph: GraphOption = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many last lines of each process.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    earlier: Annotated[
        int,
        typer.Option(
            metavar="N", help="Not of the last run here, but of the N-th before it.", show_default=False
        ),
    ] = 0,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """What an operator's processes said."""
    from hams_operator.cli import inspect  # noqa: PLC0415

    where = Target(context, namespace)
    raise Code(inspect.logs(where, operator, graph, lines, follow, earlier, output))


@app.command()
def down(
    graph: GraphOption = None,
    every: Annotated[bool, typer.Option("--all", help="All graphs that run here.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """End what `up` started."""
    from hams_operator.cli import inspect  # noqa: PLC0415

    raise Code(inspect.down(graph, every, output))


@app.command()
def kill(
    target: Annotated[
        str | None,
        typer.Argument(metavar="OPERATOR|frontend|manager", show_default=False, autocompletion=_operators),
    ] = None,
    graph: GraphOption = None,
    role: Annotated[
        str | None, typer.Option(help="primary, backup, joining, active, standby.", show_default=False)
    ] = None,
    leader: Annotated[bool, typer.Option("--leader", help="The manager that leads.")] = False,
    instance: Annotated[
        str | None, typer.Option(metavar="ID", help="This very instance.", show_default=False)
    ] = None,
    process: Annotated[str, typer.Option(help="model, proxy or both.")] = "both",
    number: Annotated[str, typer.Option("--signal", help="KILL, STOP, CONT or TERM.")] = "KILL",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send a signal to an instance: chaos by hand.

    Of several that fit, one at random is hit.
    """
    from hams_operator.cli import kill as work  # noqa: PLC0415

    where = Target(context, namespace)
    raise Code(work.kill(where, target, graph, role, leader, instance, process, number.upper(), output))


@app.command()
def restart(
    operator: Annotated[
        str,
        typer.Argument(
            metavar="OPERATOR", help="The operator (or shard, F/0) whose state is lost.", show_default=False
        ),
    ],
    graph: GraphOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Let a lost state begin again.

    Where whenLost is Stop, the graph waits for this.
    """
    from hams_operator.cli import inspect  # noqa: PLC0415

    raise Code(inspect.restart(Target(context, namespace), operator, graph, output))


@app.command()
def profile(
    operator: Annotated[
        str,
        typer.Argument(
            metavar="[OPERATOR]",
            help="The operator; without it all that learn.",
            show_default=False,
            autocompletion=_operators,
        ),
    ] = "",
    graph: GraphOption = None,
    clear: Annotated[bool, typer.Option("--clear", help="Have all instances forget it.")] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write it into a file.", show_default=False),
    ] = None,
    load: Annotated[
        Path | None,
        typer.Option(
            "--load", metavar="FILE", help="Have all instances know such a file.", show_default=False
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="GRAPH",
            help="Measure it with models of their own; the graph knows it, or with --save a file.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="With --run: request tensors, and parameter:NAME; else data.py, else random.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[int, typer.Option(help="With --run: how many requests run alone.")] = 200,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """What is learnt of execution times, and how good it is."""
    from hams_operator.cli import profile as work  # noqa: PLC0415

    if sum((clear, save is not None or run is not None, load is not None)) > 1:
        _fail("expected one of --clear, --save, --load and --run (with --save or without)", 2)
    if data is not None and run is None:
        _fail("--data is for --run", 2)
    if run is not None:
        target = Target(context, namespace)
        raise Code(work.run(target, graph, operator, run, data, samples, save, output))
    if save is not None:
        raise Code(work.save(Target(context, namespace), graph, operator, save, output))
    if load is not None:
        raise Code(work.load(Target(context, namespace), graph, operator, load, output))
    raise Code(work.profile(Target(context, namespace), graph, operator, clear, output))


@app.command()
def load(
    file: FileArgument,
    url: Annotated[
        str | None,
        typer.Option(
            help="Where the graph answers; without it the run of that name here.", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="Request tensors; without it data.py beside the models, else random.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Requests per second, whether answers come or not.")] = 50.0,
    duration: Annotated[str, typer.Option(help="How long.")] = "10s",
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every reply; send every tenth key again.")
    ] = False,
    deadline_ms: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="How long each request may take, in ms; say how many were answered within it.",
            show_default=False,
        ),
    ] = None,
    token: TokenOption = "",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send requests at a rate, and say how they were answered.

    --verify proves one reply per key.
    """
    from hams_operator.cli import load as work  # noqa: PLC0415

    where = Target(context, namespace)
    raise Code(work.load(where, file, url, data, rate, duration, verify, output, token, deadline_ms))


@app.command()
def render(
    file: FileArgument,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace; without it the file's, else default.", show_default=False)
    ] = None,
    image: Annotated[
        str, typer.Option(envvar="HAMS_SIDECAR_IMAGE", help="Image of proxies, frontends and managers.")
    ] = DEFAULT_IMAGE,
    etcd: Annotated[
        str, typer.Option(envvar="HAMS_ETCD", help="Endpoints of etcd, separated by commas.")
    ] = DEFAULT_ETCD,
    uid: Annotated[
        str, typer.Option(help="uid of the ServiceGraph that owns the objects; without it nothing owns them.")
    ] = "",
    tls: Annotated[
        bool,
        typer.Option(
            help="Pods mount the Secret with their certificates, which the controller makes; not without one."
        ),
    ] = True,
    output: OutputOption = Output.TEXT,
) -> None:
    """The Kubernetes objects that the controller would apply."""
    from hams_operator.cli import render as work  # noqa: PLC0415
    from hams_operator.plan.names import Settings  # noqa: PLC0415

    raise Code(work.render(file, namespace, Settings(etcd=etcd, image=image, tls=tls), uid, output))


@chaos_app.command("list")
def chaos_list(output: OutputOption = Output.TEXT) -> None:
    """The scenarios: rows of docs/faults.md that need a cluster."""
    from hams_operator.cli import chaos  # noqa: PLC0415

    raise Code(chaos.catalogue(output))


@chaos_app.command("run")
def chaos_run(
    scenario: Annotated[
        str,
        typer.Option(
            metavar="F14|random|F14/random", help="Which; hams chaos list tells all.", show_default=False
        ),
    ],
    graph: GraphOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    duration: Annotated[str, typer.Option(help="Of a scenario that goes on for a time.")] = "60s",
    every: Annotated[str, typer.Option(help="Between two faults of such a one.")] = "5s",
    times: Annotated[int, typer.Option(help="How often each role is hit, in the others.")] = 2,
    operator: Annotated[
        str,
        typer.Option(
            help="Whom to hit; without it the first operator with state, the first without, frontends, "
            "managers."
        ),
    ] = "",
    role: Annotated[
        str, typer.Option(help="primary, backup, active, frontend or manager; without it each that there is.")
    ] = "",
    image: Annotated[
        str, typer.Option(help="F34: the model's next image; without it its pods are restarted.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Of what is chosen at random.")] = 14,
    rate: Annotated[float, typer.Option(help="Requests per second, whether answers come or not.")] = 20.0,
    url: Annotated[
        str | None,
        typer.Option(
            help="Where the graph answers; without it its frontends, through the API server.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Request tensors; without it random ones.", show_default=False),
    ] = None,
    token: TokenOption = "",
    system: Annotated[str, typer.Option(help="Namespace of the controllers.")] = "hams-system",
    allow_state_loss: Annotated[
        bool, typer.Option("--allow-state-loss", help="For scenarios that may lose a state.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Hit a graph on a cluster while it answers requests; exit code 1 if a request failed."""
    from hams_operator.chaos.scenarios import Aim  # noqa: PLC0415
    from hams_operator.cli import chaos  # noqa: PLC0415
    from hams_operator.cli.output import seconds  # noqa: PLC0415

    aim = Aim(operator, role, times, seconds(duration), seconds(every), seed, image)
    where = Target(context, namespace)
    raise Code(
        chaos.run(
            scenario, graph, where, system, aim, chaos.Load(url, rate, data, token), allow_state_loss, output
        )
    )


@image_app.command("build")
def image_build(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The model's code, and requirements.txt.", show_default=False),
    ],
    name: Annotated[
        str, typer.Option(metavar="REGISTRY/NAME:TAG", help="As the graph names it.", show_default=False)
    ],
    builder: Annotated[str, typer.Option(help="auto, docker, podman, buildah or local.")] = "auto",
    push: Annotated[bool, typer.Option("--push", help="Push it to its registry.")] = False,
) -> None:
    """A model's own code as an image, with docker, podman, buildah, or the project's own builder."""
    from hams_operator.cli import image  # noqa: PLC0415

    raise Code(image.build(folder, name, builder, push))


@app.command(context_settings=_RAW)
def sim(context: typer.Context) -> None:
    """Simulate histories: hams sim --histories N --seed S."""
    raise Code(_delegate("hams_sim.runner", "the simulator", context.args))


@history_app.command("check", context_settings=_RAW)
def history_check(context: typer.Context) -> None:
    """Check a recorded history: hams history check DIR."""
    raise Code(_delegate("hams_history.command", "the history checker", ["check", *context.args]))


@app.command(context_settings=_RAW)
def bench(context: typer.Context) -> None:
    """The benchmarks: hams bench NAME --out FILE.json."""
    from hams_operator.cli import bench as work  # noqa: PLC0415

    raise Code(work.bench(context.args))


def _delegate(module: str, what: str, arguments: list[str]) -> int:
    """Hand the arguments to another part's own command."""
    if importlib.util.find_spec(module) is None:
        raise CommandError(f"{what} is not in this installation (no module {module})")
    result = importlib.import_module(module).main(arguments)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except (CommandError, BadData) as error:
        _fail(str(error), _code(error))
    except ExceptionGroup as group:
        complaints, others = group.split((CommandError, BadData))
        if complaints is None or others is not None:
            raise
        first = _first(complaints)
        _fail(str(first), _code(first))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # `hams logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except ModuleNotFoundError as error:
        lacking = extra_of(error.name or "")
        if lacking is None or error.name is None:
            raise
        _fail(sentence(f"hams {' '.join(sys.argv[1:2])}", (error.name,), lacking), 1)
    except OSError as error:  # what the machine refuses, where no command has better words for it
        from hams_operator.local.home import refused  # noqa: PLC0415 - only what fails needs it

        _fail(refused(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"hams: {message}\n")
    raise SystemExit(code) from None


def _code(error: Exception) -> int:
    return error.code if isinstance(error, CommandError) else 1


def _first(group: "ExceptionGroup[Exception]") -> Exception:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


if __name__ == "__main__":
    main()
