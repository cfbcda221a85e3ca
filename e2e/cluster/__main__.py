"""`python -m e2e.cluster`: the cluster by hand."""

import argparse
import os
import sys
from pathlib import Path

from e2e.cluster import binaries, machine
from e2e.cluster.cluster import Cluster, NotPossible
from e2e.cluster.commands import CommandFailed, NotInTime
from e2e.cluster.layout import ROOT, node_name
from e2e.cluster.machine import IMPOSSIBLE


def parser() -> argparse.ArgumentParser:
    """The commands."""
    top = argparse.ArgumentParser(
        prog="python -m e2e.cluster", description="A real Kubernetes of one to three nodes on this machine."
    )
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="bring what is not there: Debian packages, Kubernetes, helm")
    commands.add_parser("check", help="whether a cluster can be made here; says why not")
    up = commands.add_parser("up", help="start; those of `make images` are in every node")
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument(
        "--image",
        type=Path,
        action="append",
        default=[],
        help="an image archive, besides those of `make images`",
    )
    commands.add_parser("down", help="end everything; the cache stays")
    commands.add_parser("status", help="what runs")
    load = commands.add_parser("load", help="import image archives into every node")
    load.add_argument("archive", type=Path, nargs="+")
    inside = commands.add_parser("exec", help="run a command in a node's network")
    inside.add_argument("--node", type=int, default=0)
    inside.add_argument("words", nargs=argparse.REMAINDER)
    for name, about in (("stop", "SIGKILL a node, or one of its programs"), ("start", "start it again")):
        one = commands.add_parser(name, help=about)
        one.add_argument("node", type=int)
        one.add_argument("component", nargs="?", default="")
    for name, about in (("cut", "cut a node off"), ("heal", "mend it")):
        commands.add_parser(name, help=about).add_argument("node", type=int)
    commands.add_parser("helm", help="build helm if there is none, and print where it is")
    commands.add_parser("env", help="print what a shell needs: eval $(python -m e2e.cluster env)")
    return top


def act(cluster: Cluster, options: argparse.Namespace) -> None:
    """Do what was asked."""
    match options.command:
        case "build":
            # first: the tests of the chart want it, and it takes a tenth of the time
            binaries.build_helm(cluster.folders.bin)
            cluster.build()
        case "check":
            machine.prepare()
        case "up":
            cluster.build()
            archives = sorted((ROOT / "out" / "images").glob("*.tar"))
            cluster.up(options.nodes, [*archives, *(path.resolve() for path in options.image)])
        case "down":
            cluster.down()
        case "status":
            for number in cluster.running():
                print(node_name(number))
        case "load":
            cluster.load([path.resolve() for path in options.archive])
        case "exec":
            words = (
                [argument for argument in options.words if argument != "--"]
                if options.words[:1] == ["--"]
                else options.words
            )
            command = cluster.command_in(options.node, *words)
            os.execvpe(command[0], command, cluster.environment())
        case "stop":
            cluster.stop(options.node, options.component)
        case "start":
            cluster.start(options.node, options.component)
        case "cut":
            cluster.cut(options.node)
        case "heal":
            cluster.heal(options.node)
        case "helm":
            print(binaries.build_helm(cluster.folders.bin))
        case "env":
            print(f"export KUBECONFIG={cluster.folders.kubeconfig} PATH={cluster.folders.bin}:$PATH")


def main() -> int:
    """Returns the exit code: IMPOSSIBLE where this machine cannot do what was asked."""
    try:
        act(Cluster(), parser().parse_args())
    except NotPossible as error:
        print(error, file=sys.stderr)
        return IMPOSSIBLE
    except (NotInTime, CommandFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
