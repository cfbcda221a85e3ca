"""Which fields the templates of a ServiceGraph may set. The right to write a ServiceGraph is not the right to
run any pod: no token, no Secret, no folder of a node and no privilege comes by a template unless the person
who installed the controller has allowed its field.

A field is a path such as `spec.tolerations` or `spec.containers[].resources`, and allows all below it; `*`
allows everything.
"""

from collections.abc import Collection, Iterator

from hams_graph import Graph, InvalidGraph, Problem, load_object
from hams_operator.plan.names import Json, Settings

EVERYTHING = "*"

_RUN_CODE = frozenset(
    ("spec.containers[].env[].name", "spec.containers[].env[].value", "spec.containers[].volumeMounts")
)
"""By these somebody's code runs in a process of ours: PYTHONPATH, or a file in the place of one of ours. It
could read what is mounted there. `tokenSecret` names any Secret of the namespace, whoever may read it."""


def read_permitted(item: Json, uid: str, settings: Settings) -> Graph:
    """The graph of a resource as Kubernetes holds it. Raises InvalidGraph, also for templates with fields
    that are not allowed."""
    graph = load_object({name: value for name, value in item.items() if name != "status"}, uid=uid)
    problems = list(_forbidden(item["spec"], settings))
    if problems:
        raise InvalidGraph(problems)
    return graph


def _forbidden(spec: Json, settings: Settings) -> Iterator[Problem]:
    frontend, managers = spec.get("frontend") or {}, spec.get("managers") or {}
    unlisted = "is not among the fields that may be set here (the chart's value {} lists them)"
    pods = [
        ("spec.managers.podTemplate", managers.get("podTemplate")),
        *(
            (f"spec.operators[{position}].podTemplate", operator.get("podTemplate"))
            for position, operator in enumerate(spec["operators"])
        ),
    ]
    holds_secret = bool(frontend.get("tokenSecret"))
    of_frontend = [field for field in settings.pod_fields if not (holds_secret and field in _RUN_CODE)]
    why_frontend = unlisted.format("templates.pod") + (
        ", or could run code that reads the Secret of tokenSecret" if holds_secret else ""
    )
    for where, template, allowed, why in (
        ("spec.frontend.podTemplate", frontend.get("podTemplate"), of_frontend, why_frontend),
        *((*place, settings.pod_fields, unlisted.format("templates.pod")) for place in pods),
        (
            "spec.frontend.service",
            frontend.get("service"),
            settings.service_fields,
            unlisted.format("templates.service"),
        ),
    ):
        for path in beyond(template or {}, allowed):
            yield Problem(f"{where}.{path}", why)


def beyond(template: object, allowed: Collection[str], path: str = "") -> Iterator[str]:
    """Fields of a template that are not allowed, each once."""
    if EVERYTHING in allowed or path in allowed:
        return
    if isinstance(template, list):
        yield from dict.fromkeys(
            path_beyond for item in template for path_beyond in beyond(item, allowed, f"{path}[]")
        )
    elif isinstance(template, dict):
        for name, value in template.items():
            here = f"{path}.{name}" if path else name
            if here in allowed:
                continue
            above = any(field.startswith((f"{here}.", f"{here}[]")) for field in allowed)
            if above and isinstance(value, dict | list):
                yield from beyond(value, allowed, here)
            else:
                yield here
    else:
        yield path
