"""Templates set what is allowed: placement, sizes and volumes; not rights, not Secrets, not a node's
files."""

from typing import Any

import pytest
import yaml

from hams_graph import InvalidGraph
from hams_operator.plan.names import POD_FIELDS, SERVICE_FIELDS, Settings
from hams_operator.plan.permitted import beyond, read_permitted

from .kit import PAIR, SETTINGS

Json = dict[str, Any]


@pytest.mark.parametrize(
    "template",
    [
        "{}",
        "{metadata: {labels: {a: b}, annotations: {c: d}}}",
        "{spec: {nodeSelector: {pool: gpu}, tolerations: [{key: gpu, operator: Exists}], runtimeClassName: "
        "nvidia}}",
        "{spec: {affinity: {nodeAffinity: {}}, priorityClassName: high, imagePullSecrets: [{name: ours}]}}",
        "{spec: {containers: [{name: model, resources: {limits: {nvidia.com/gpu: 1}}, env: [{name: A, "
        "value: b}]}]}}",
        "{spec: {volumes: [{name: data, persistentVolumeClaim: {claimName: x}}]}}",
        "{spec: {containers: [{name: proxy, volumeMounts: [{name: data, mountPath: /data}]}]}}",
        "{spec: {volumes: [{name: link, emptyDir: {medium: Memory, sizeLimit: 1Gi}}]}}",
    ],
)
def test_placement_sizes_and_volumes_are_allowed(template: str) -> None:
    assert list(beyond(yaml.safe_load(template), POD_FIELDS)) == []


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("{spec: {hostNetwork: true}}", "spec.hostNetwork"),
        ("{spec: {hostPID: true}}", "spec.hostPID"),
        ("{spec: {serviceAccountName: admin}}", "spec.serviceAccountName"),
        ("{spec: {automountServiceAccountToken: true}}", "spec.automountServiceAccountToken"),
        ("{spec: {securityContext: {runAsUser: 0}}}", "spec.securityContext"),
        ("{spec: {nodeName: node0}}", "spec.nodeName"),
        ("{spec: {initContainers: [{name: x, image: y}]}}", "spec.initContainers"),
        ("{spec: {containers: [{name: x, image: y}]}}", "spec.containers[].image"),
        ("{spec: {containers: [{name: model, command: [sh]}]}}", "spec.containers[].command"),
        (
            "{spec: {containers: [{name: model, securityContext: {privileged: true}}]}}",
            "spec.containers[].securityContext",
        ),
        ("{spec: {containers: [{name: model, securityContext: null}]}}", "spec.containers[].securityContext"),
        (
            "{spec: {containers: [{name: model, envFrom: [{secretRef: {name: x}}]}]}}",
            "spec.containers[].envFrom",
        ),
        (
            "{spec: {containers: [{name: model, env: [{name: A, valueFrom: {secretKeyRef: {name: x, key: "
            "y}}}]}]}}",
            "spec.containers[].env[].valueFrom",
        ),
        ("{spec: {containers: [{$patch: replace}]}}", "spec.containers[].$patch"),
        ("{spec: {containers: null}}", "spec.containers"),
        ("{spec: {containers: [model]}}", "spec.containers[]"),
        ("{spec: {$patch: replace}}", "spec.$patch"),
        ("{spec: {volumes: [{name: node, hostPath: {path: /}}]}}", "spec.volumes[].hostPath"),
        ("{spec: {volumes: [{name: theirs, secret: {secretName: x}}]}}", "spec.volumes[].secret"),
        ("{spec: {volumes: [{name: token, projected: {sources: []}}]}}", "spec.volumes[].projected"),
        ("{metadata: {name: x}}", "metadata.name"),
        ("{metadata: {ownerReferences: []}}", "metadata.ownerReferences"),
        ("{spec: null}", "spec"),
    ],
)  # fmt: skip
def test_what_gives_a_pod_rights_secrets_or_its_nodes_files_is_not(template: str, path: str) -> None:
    assert list(beyond(yaml.safe_load(template), POD_FIELDS)) == [path]
    assert list(beyond(yaml.safe_load(template), (*POD_FIELDS, path))) == []
    assert list(beyond(yaml.safe_load(template), ("*",))) == []


def test_a_service_may_not_take_addresses() -> None:
    assert list(beyond({"spec": {"type": "LoadBalancer"}}, SERVICE_FIELDS)) == []
    assert list(beyond({"spec": {"externalIPs": ["10.0.0.1"]}}, SERVICE_FIELDS)) == ["spec.externalIPs"]


@pytest.mark.parametrize("where", ["operators", "frontend", "managers"])
def test_every_template_of_a_graph_is_looked_at_and_named_with_its_place(where: str) -> None:
    item = yaml.safe_load(PAIR)
    template = {"spec": {"hostNetwork": True, "hostPID": True}}
    if where == "operators":
        item["spec"]["operators"][1]["podTemplate"] = template
    else:
        item["spec"][where] = {"podTemplate": template}
    with pytest.raises(InvalidGraph) as caught:
        read_permitted(item, "7", SETTINGS)
    place = "spec.operators[1]" if where == "operators" else f"spec.{where}"
    assert [problem.path for problem in caught.value.problems] == [
        f"{place}.podTemplate.spec.{name}" for name in ("hostNetwork", "hostPID")
    ]
    assert "templates.pod" in str(caught.value)
    assert read_permitted(item, "7", Settings(pod_fields=("*",))).data.uid == "7"


@pytest.mark.parametrize(
    "container",
    [
        {"env": [{"name": "PYTHONPATH", "value": "/data"}]},
        {"volumeMounts": [{"name": "data", "mountPath": "/usr/lib/python3.11/site-packages/hams_sidecar"}]},
    ],
)
def test_no_code_of_the_author_runs_where_a_secret_is_mounted(container: Json) -> None:
    """`tokenSecret` names any Secret of the namespace: whoever may write graphs may not read it by that."""
    item = yaml.safe_load(PAIR)
    template = {"spec": {"containers": [{"name": "frontend", **container}]}}
    item["spec"]["frontend"] = {"podTemplate": template}
    read_permitted(item, "7", SETTINGS)
    item["spec"]["frontend"]["tokenSecret"] = "of-somebody-else"
    with pytest.raises(InvalidGraph, match="tokenSecret"):
        read_permitted(item, "7", SETTINGS)
    item["spec"]["frontend"]["podTemplate"] = {
        "spec": {"containers": [{"name": "frontend", "resources": {"limits": {"memory": "2Gi"}}}]}
    }
    read_permitted(item, "7", SETTINGS)
