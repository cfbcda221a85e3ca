"""Strategic merge of a user's podTemplate over the default pod, as `kubectl patch` does it.

Mappings are merged key by key, `null` removes; lists of named things are merged by their key, other lists are
replaced; `$patch: delete` and `$patch: replace` inside a mapping do what they do in kubectl. The rules per
list are those of the Kubernetes API for pods
(https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/, "patch strategy").
"""

from typing import Any

from hams_operator.plan.names import Json

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
DIRECTIVE = "$patch"


def merged(base: Json, patch: Json) -> Json:
    """`patch` over `base`; neither is changed."""
    if patch.get(DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != DIRECTIVE}
    result = dict(base)
    for key, value in patch.items():
        if key == DIRECTIVE:
            continue
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, dict) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS and _named(value, MERGE_KEYS[key]):
            below = result.get(key)
            result[key] = _merged_list(below if isinstance(below, list) else [], value, MERGE_KEYS[key])
        else:
            result[key] = value
    return result


def _named(items: list[Any], name: str) -> bool:
    return all(isinstance(item, dict) and (name in item or DIRECTIVE in item) for item in items)


def _merged_list(base: list[Any], patch: list[Any], name: str) -> list[Any]:
    """Items of `base` keep their places, new ones come behind."""
    if any(item.get(DIRECTIVE) == "replace" and name not in item for item in patch):
        return [item for item in patch if name in item]
    changes = {item[name]: item for item in patch if name in item}
    items = [merged(item, changes[item[name]]) if item.get(name) in changes else item for item in base]
    items = [item for item in items if changes.get(item.get(name), {}).get(DIRECTIVE) != "delete"]
    known = {item.get(name) for item in base}
    return items + [
        merged({}, item)
        for key, item in changes.items()
        if key not in known and item.get(DIRECTIVE) != "delete"
    ]
