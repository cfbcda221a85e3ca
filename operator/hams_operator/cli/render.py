"""`hams render`: the Kubernetes objects of a graph, as the controller would apply them. Applied by hand they
start the graph too."""

import sys
from pathlib import Path

import yaml

from hams_graph import InvalidGraph, load, read_place
from hams_operator.cli.output import Output, check_namespace, complain, print_json
from hams_operator.plan.desired import desired
from hams_operator.plan.names import GraphRef, Settings
from hams_wire.spec import encode_spec


class _Dumper(yaml.SafeDumper):
    """YAML without aliases, text of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        """Kubernetes' own YAML knows none."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def render(file: Path, namespace: str | None, settings: Settings, uid: str, output: Output) -> int:
    """Print them; all errors and exit 1 if the graph is wrong."""
    check_namespace(namespace)
    if not settings.image.isprintable() or len(settings.image.split()) != 1:
        complain(f"--image: expected the name of an image, found {settings.image!r}", 2)
    if not settings.etcd.strip():
        complain("--etcd: expected endpoints, separated by commas, found none", 2)
    try:
        name, file_namespace, file_uid = read_place(file)
        place = GraphRef(name, namespace or file_namespace or "default", uid or file_uid)
        graph = load(file, uid=place.graph_uid(), on_kubernetes=True)
    except InvalidGraph as error:
        complain(
            "\n".join(
                [
                    f"{file}: {len(error.problems)} problem{'s' if len(error.problems) > 1 else ''}",
                    *map(str, error.problems),
                ]
            )
        )
    objects = desired(graph, encode_spec(graph).decode(), place, settings)
    if output is Output.JSON:
        print_json({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    else:
        sys.stdout.write(
            yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=150, explicit_start=True)
        )
    return 0
