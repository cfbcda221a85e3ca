"""What the chart installs, by what helm renders."""

import ast
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hams_operator.controller import kube
from hams_operator.controller.kube import OWNED
from hams_operator.controller.store import CONDITIONS
from hams_operator.etcd_member import others_of, settings_of
from hams_operator.plan.names import DEFAULT_ETCD, POD_FIELDS, SERVICE_FIELDS

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "hams"
Objects = list[dict[str, Any]]
Render = Callable[..., Objects]


def one(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    values = [item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name]
    assert len(values) == 1, [(item["kind"], item["metadata"]["name"]) for item in objects]
    return values[0]


def containers(objects: Objects) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every container with its pod's spec."""
    seen = []
    for item in objects:
        spec = item.get("spec", {})
        if item["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        pod = spec if item["kind"] == "Pod" else spec.get("template", {}).get("spec")
        if pod:
            seen += [(item["metadata"]["name"], pod, container) for container in pod["containers"]]
    return seen


def environment(objects: Objects) -> dict[str, str]:
    pod = one(objects, "Deployment", "hams-controller")["spec"]["template"]["spec"]
    return {item["name"]: item.get("value", "") for item in pod["containers"][0]["env"]}


def test_the_charts_copy_of_the_crd_is_the_crd() -> None:
    name = "hams.dev_servicegraphs.yaml"
    assert (CHART / "crds" / name).read_bytes() == (ROOT / "crds" / name).read_bytes()


def test_the_charts_version_is_that_of_the_wheels() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert chart["version"] == chart["appVersion"] == project.group(1)


def test_helm_lints_the_chart(helm: str) -> None:
    done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_upgrades_are_described_with_options_that_work(helm: str) -> None:
    pages = {path: path.read_text() for path in (ROOT / "docs" / "upgrade.md", CHART / "README.md")}
    there = subprocess.run([helm, "upgrade", "--help"], capture_output=True, text=True, check=True).stdout
    upgrades = re.findall(r"helm upgrade .*", "\n".join(pages.values()))
    for option in re.findall(r"--[a-z-]+", "\n".join(upgrades)):
        assert f"{option} " in there, option
    for path, text in pages.items():
        assert not re.search(r"helm upgrade .*--reuse-values", text), f"{path}: new values would be nil"
        for line in re.findall(r"kubectl apply --server-side.*crds/", text):
            assert "--force-conflicts" in line, f"{path}: fields of a CRD that helm has made are helm's"
    assert upgrades


def test_every_key_of_values_is_in_the_schema_and_the_other_way_round() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(value: Any, described: dict[str, Any], path: str) -> None:
        if described.get("type") != "object" or "properties" not in described:
            return
        assert described["additionalProperties"] is False, path
        assert set(value) == set(described["properties"]) - {"global"}, path
        for name, item in value.items():
            compare(item, described["properties"][name], f"{path}.{name}")

    compare(values, schema, "values")


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"controler": {}}, "controler"),
        ({"etcd": {"replicas": 2}}, "replicas"),
        ({"etcd": {"spread": "Never"}}, "spread"),
        ({"etcd": {"endpoints": ["etcd:2379"]}}, "endpoints"),
        ({"webhook": {"failurePolicy": "Maybe"}}, "failurePolicy"),
        ({"controller": {"replicas": "two"}}, "replicas"),
        ({"history": {"hostPath": "relative"}}, "hostPath"),
        ({"templates": {"pod": ["spec/containers"]}}, "pod"),
        ({"controller": {"watchNamespaces": []}}, "watchNamespaces"),
    ],
)
def test_wrong_values_are_refused_with_their_place(render: Render, values: dict[str, Any], path: str) -> None:
    with pytest.raises(ValueError, match=path):
        render(values)


def test_all_pods_find_their_images_and_run_where_they_may(render: Render) -> None:
    taint = [{"key": "only", "operator": "Exists"}]
    where = {"nodeSelector": {"pool": "x"}, "tolerations": taint, "priorityClassName": "high"}
    items = containers(
        render({"image": {"pullSecrets": ["ours", "theirs"]}, "controller": where, "etcd": where})
    )
    assert {name for name, _, _ in items} >= {
        "hams-controller",
        "hams-etcd",
        "hams-etcd-defragmentation",
        "hams-test-controller",
        "hams-test-etcd",
    }
    for name, pod, _ in items:
        assert pod["imagePullSecrets"] == [{"name": "ours"}, {"name": "theirs"}], name
        assert {key: pod.get(key) for key in where} == where, name
    for name, pod, _ in containers(render()):
        assert not {"imagePullSecrets", *where} & set(pod), name


def test_all_pods_meet_the_restricted_profile(render: Render) -> None:
    items = containers(render())
    assert {name for name, _, _ in items} >= {
        "hams-controller",
        "hams-etcd",
        "hams-etcd-defragmentation",
        "hams-test-controller",
        "hams-test-etcd",
    }
    for name, pod, container in items:
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, name
        assert context["capabilities"] == {"drop": ["ALL"]}, name
        assert context["readOnlyRootFilesystem"] is True, name


def test_only_the_controller_has_a_token(render: Render) -> None:
    with_token = {
        name for name, pod, _ in containers(render()) if pod.get("automountServiceAccountToken") is not False
    }
    assert with_token == {"hams-controller"}


def test_the_controller_is_told_of_every_member_of_etcd(render: Render) -> None:
    given = environment(render())["HAMS_ETCD"].split(",")
    assert given == [
        f"https://hams-etcd-{number}.hams-etcd-peers.hams-system.svc:2379" for number in range(3)
    ]
    assert given == DEFAULT_ETCD.split(","), "`hams render` takes an installation as it is documented"


def test_the_fields_that_templates_may_set_are_those_that_the_controller_knows_by_itself(
    render: Render,
) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["templates"]
    assert (tuple(values["pod"]), tuple(values["service"])) == (POD_FIELDS, SERVICE_FIELDS)
    given = environment(render())
    assert given["HAMS_POD_FIELDS"] == ",".join(POD_FIELDS)
    given = environment(render({"templates": {"pod": ["*"], "service": []}}))
    assert (given["HAMS_POD_FIELDS"], given["HAMS_SERVICE_FIELDS"]) == ("*", "")


def test_an_etcd_of_ones_own_replaces_the_installed_one(render: Render) -> None:
    objects = render({"etcd": {"endpoints": ["http://one:2379", "http://two:2379"]}})
    assert environment(objects)["HAMS_ETCD"] == "http://one:2379,http://two:2379"
    assert not [item["metadata"]["name"] for item in objects if "etcd" in item["metadata"]["name"]]


def test_members_of_etcd_know_each_other_by_names_that_the_headless_service_publishes_early(
    render: Render,
) -> None:
    objects = render()
    pod = one(objects, "StatefulSet", "hams-etcd")["spec"]["template"]["spec"]
    arguments = pod["initContainers"][0]["args"]
    cluster = next(flag for flag in arguments if flag.startswith("--initial-cluster=")).removeprefix(
        "--initial-cluster="
    )
    assert cluster.split(",") == [
        f"hams-etcd-{n}=https://hams-etcd-{n}.hams-etcd-peers.hams-system.svc:2380" for n in range(3)
    ]
    service = one(objects, "Service", "hams-etcd-peers")["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True


def test_a_member_of_etcd_is_told_by_a_file_what_its_flags_were(render: Render) -> None:
    """Who writes it looks first whether the member has lost its data (`hams_operator.etcd_member`)."""
    pod = one(render(), "StatefulSet", "hams-etcd")["spec"]["template"]["spec"]
    (before,), member = pod["initContainers"], pod["containers"][0]
    assert before["command"] == ["python3", "-m", "hams_operator.etcd_member"]
    controller = one(render(), "Deployment", "hams-controller")["spec"]["template"]["spec"]["containers"][0]
    assert before["image"] == controller["image"]
    assert f"--config={member['args'][0].removeprefix('--config-file=')}" in before["args"]
    assert "--tls=/etc/etcd-tls" in before["args"]
    assert {"name": "data", "mountPath": "/var/lib/etcd"} in before["volumeMounts"]
    flags = before["args"][before["args"].index("--") + 1 :]
    assert "--initial-cluster-state=new" in flags
    assert others_of(settings_of(flags)) == [
        f"https://hams-etcd-{n}.hams-etcd-peers.hams-system.svc:2380" for n in range(3)
    ], "its own is told by the pod's name"
    clear = one(render({"tls": {"enabled": False}}), "StatefulSet", "hams-etcd")["spec"]["template"]["spec"]
    assert not [flag for flag in clear["initContainers"][0]["args"] if flag.startswith("--tls")]


def test_a_majority_of_etcd_is_never_evicted(render: Render) -> None:
    for replicas, unavailable in ((1, 0), (3, 1), (5, 2)):
        budget = one(render({"etcd": {"replicas": replicas}}), "PodDisruptionBudget", "hams-etcd")
        assert budget["spec"]["maxUnavailable"] == unavailable


def test_members_of_etcd_may_be_kept_on_nodes_of_their_own(render: Render) -> None:
    for values, wanted in (({}, "ScheduleAnyway"), ({"etcd": {"spread": "DoNotSchedule"}}, "DoNotSchedule")):
        template = one(render(values), "StatefulSet", "hams-etcd")["spec"]["template"]
        (constraint,) = template["spec"]["topologySpreadConstraints"]
        assert constraint["whenUnsatisfiable"] == wanted
        chosen = constraint["labelSelector"]["matchLabels"]
        assert chosen.items() <= template["metadata"]["labels"].items()


def test_the_webhook_is_wired_to_what_the_controller_is_told(render: Render) -> None:
    objects = render()
    given = environment(objects)
    hook = one(objects, "ValidatingWebhookConfiguration", given["HAMS_WEBHOOK_CONFIGURATION"])["webhooks"][0]
    assert hook["clientConfig"]["service"] == {
        "name": given["HAMS_WEBHOOK_SERVICE"],
        "namespace": "hams-system",
        "path": "/validate",
        "port": 443,
    }
    service = one(objects, "Service", given["HAMS_WEBHOOK_SERVICE"])["spec"]
    ports = one(objects, "Deployment", "hams-controller")["spec"]["template"]["spec"]["containers"][0][
        "ports"
    ]
    assert {"name": service["ports"][0]["targetPort"], "containerPort": 9443} in ports


def test_without_the_webhook_nothing_of_it_is_left(render: Render) -> None:
    objects = render({"webhook": {"enabled": False}, "tls": {"enabled": False}})
    assert {value for name, value in environment(objects).items() if name.startswith("HAMS_WEBHOOK")} == {""}
    text = yaml.safe_dump_all(objects)
    assert "webhooks" not in text
    assert "secrets" not in text


VERBS = {
    "get": {"get"},
    "page": {"list"},
    "watch": {"watch"},
    "create": {"create"},
    "replace": {"update"},
    "merge": {"patch"},
    "delete": {"delete"},
}
VERBS["apply"] = {"create", "patch"}  # of an object that is not there yet it is both
Right = tuple[str, str]


def rights_used() -> set[Right]:
    """Resource and verb of everything that the controller sends, by its calls of `Kube`; and what others do
    in its name."""
    followed = [*OWNED.values(), kube.PODS]  # `Controller.__init__`
    used = {("servicegraphs", "list"), ("servicegraphs", "watch")}  # kopf
    # kopf
    used |= {
        (resource, verb)
        for resource in ("namespaces", "customresourcedefinitions")
        for verb in ("list", "watch")
    }
    # the API server asks for it where an owner reference says `blockOwnerDeletion`
    used |= {("servicegraphs/finalizers", "update")}
    for path in (ROOT / "operator" / "hams_operator" / "controller").glob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            function = call.func
            if not (
                isinstance(function, ast.Attribute)
                and call.args
                and ast.unparse(function.value) in ("kube", "self._kube")
            ):
                continue
            named = ast.unparse(call.args[0])
            sub = "/status" if function.attr == "apply" and len(call.args) == 5 else ""
            known = {"OWNED": [*OWNED.values()], "self._resource": followed}.get(named.partition("[")[0])
            for resource in known or [getattr(kube, named)]:
                verbs = {"patch"} if sub else VERBS[function.attr]  # a status is never made alone
                used |= {(resource.plural + sub, verb) for verb in verbs}
    return used


def test_the_controller_may_do_what_it_does_and_nothing_besides(render: Render) -> None:
    roles = [
        item
        for item in render()
        if item["kind"] in ("Role", "ClusterRole") and "hams-controller" in item["metadata"]["name"]
    ]
    granted = {
        (resource, verb)
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == rights_used()
    groups = {group for role in roles for rule in role["rules"] for group in rule["apiGroups"]}
    assert "events.k8s.io" not in groups


def test_the_controller_lists_no_secrets_and_deletes_only_its_own(render: Render) -> None:
    for tls in (True, False):
        for item in render({"tls": {"enabled": tls}}):
            for rule in item.get("rules", ()) if item["kind"] in ("Role", "ClusterRole") else ():
                if "secrets" in rule["resources"]:
                    assert not {"list", "watch", "deletecollection"} & set(rule["verbs"])
                    assert item["kind"] == "Role" or (tls and rule["verbs"] == ["get", "create", "update"])
                    assert tls or rule["verbs"] == ["create"] or rule["resourceNames"] == ["hams-webhook"]
                assert "*" not in [*rule["resources"], *rule["verbs"], *rule["apiGroups"]]


def test_etcd_lets_in_who_has_a_certificate_and_members_have_an_authority_of_their_own(
    render: Render,
) -> None:
    pod = one(render(), "StatefulSet", "hams-etcd")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    given = pod["initContainers"][0]["args"]
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in given)
    assert {"client-cert-auth", "peer-client-cert-auth"} <= set(flags)
    assert flags["trusted-ca-file"] != flags["peer-trusted-ca-file"]
    assert not [flag for flag in given if "http:" in flag]
    assert "listen-metrics-urls" not in flags
    assert flags["enable-grpc-gateway"] == "false"
    assert {port["containerPort"] for port in container["ports"]} == {2379, 2380}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"][0] == "etcdctl"
    assert "--consistency=s" in container["livenessProbe"]["exec"]["command"], (
        "without a majority a member is alive all the same"
    )
    volume = next(item for item in pod["volumes"] if item["name"] == "tls")
    assert volume["secret"] == {"secretName": "hams-etcd-tls", "defaultMode": 0o440}
    assert environment(render())["HAMS_ETCD_MEMBERS_SECRET"] == "hams-etcd-tls"


def test_etcds_metrics_are_reachable_where_that_is_asked_for(render: Render) -> None:
    values = {"etcd": {"metrics": {"enabled": True}}, "metrics": {"serviceMonitor": {"enabled": True}}}
    objects = render(values)
    pod = one(objects, "StatefulSet", "hams-etcd")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert "--listen-metrics-urls=http://0.0.0.0:2381" in pod["initContainers"][0]["args"]
    assert {"name": "metrics", "containerPort": 2381} in container["ports"]
    monitor = one(objects, "PodMonitor", "hams-etcd")["spec"]
    assert monitor["podMetricsEndpoints"][0]["port"] == "metrics"
    assert monitor["selector"]["matchLabels"]["app.kubernetes.io/component"] == "etcd"
    ingress = one(objects, "NetworkPolicy", "hams-etcd")["spec"]["ingress"]
    assert any({"port": 2381, "protocol": "TCP"} in rule.get("ports", []) for rule in ingress)


def test_an_upgrade_replaces_no_member_of_etcd_that_would_lose_its_data(render: Render) -> None:
    without = one(render({"etcd": {"persistence": {"enabled": False}}}), "StatefulSet", "hams-etcd")
    assert without["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "updateStrategy" not in one(render(), "StatefulSet", "hams-etcd")["spec"]


def test_who_looks_after_etcd_reaches_every_member_and_says_who_it_is(render: Render) -> None:
    objects = render()
    job = one(objects, "CronJob", "hams-etcd-defragmentation")["spec"]["jobTemplate"]["spec"]["template"][
        "spec"
    ]
    for pod in (job, one(objects, "Pod", "hams-test-etcd")["spec"]):
        container = pod["containers"][0]
        endpoints = next(flag for flag in container["args"] if flag.startswith("--endpoints="))
        assert len(endpoints.split(",")) == 3
        assert "--key=/etc/etcd-tls/client.key" in container["args"]
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/etc/etcd-tls"]
        assert [volume["secret"]["secretName"] for volume in pod["volumes"]] == ["hams-etcd-tls"]


def test_without_tls_nothing_of_it_is_left(render: Render) -> None:
    objects = render({"tls": {"enabled": False}, "metrics": {"serviceMonitor": {"enabled": True}}})
    given = environment(objects)
    assert given["HAMS_TLS"] == "false"
    assert given["HAMS_ETCD_MEMBERS_SECRET"] == ""
    text = yaml.safe_dump_all([item for item in objects if item["metadata"]["name"] != "hams-controller"])
    assert not [flag for flag in ("https:", "etcd-tls", "cert-file", "authorization:") if flag in text]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"etcd": {"endpoints": ["https://one:2379"]}}, "tlsSecret has to name"),
        ({"etcd": {"endpoints": ["https://one:2379", "http://two:2379"], "tlsSecret": "x"}}, "mixed"),
        ({"etcd": {"endpoints": ["http://one:2379"], "tlsSecret": "x"}}, "not https"),
        (
            {"etcd": {"endpoints": ["https://one:2379"], "tlsSecret": "x"}, "tls": {"enabled": False}},
            "tls.enabled",
        ),
    ],
)
def test_an_etcd_of_ones_own_needs_what_proves_who_we_are(
    render: Render, values: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        render(values)


def test_the_authorities_of_an_etcd_of_ones_own_come_from_its_secret(render: Render) -> None:
    given = environment(render({"etcd": {"endpoints": ["https://one:2379"], "tlsSecret": "their-etcd"}}))
    assert (given["HAMS_ETCD_SECRET"], given["HAMS_ETCD_MEMBERS_SECRET"]) == ("their-etcd", "")


def test_prometheus_bears_the_token_that_the_controller_has_made(render: Render) -> None:
    objects = render({"metrics": {"serviceMonitor": {"enabled": True}}})
    secret = environment(objects)["HAMS_METRICS_SECRET"]
    for item in objects:
        if item["kind"] in ("ServiceMonitor", "PodMonitor"):  # etcd's own has no token
            for endpoint in item["spec"].get("endpoints", []) + item["spec"].get("podMetricsEndpoints", []):
                assert endpoint["authorization"] == {"credentials": {"name": secret, "key": "token"}}


def secrets_by_binding(objects: Objects) -> dict[str, str]:
    """Where the controller may touch Secrets: the namespace of the binding ("": everywhere), and the role."""
    roles = {
        item["metadata"]["name"]
        for item in objects
        if item["kind"] in ("ClusterRole", "Role")
        and any("secrets" in rule["resources"] for rule in item["rules"])
    }
    return {
        (item["metadata"].get("namespace") or "hams-system") if item["kind"] == "RoleBinding" else "": item[
            "roleRef"
        ]["name"]
        for item in objects
        if item["kind"] in ("ClusterRoleBinding", "RoleBinding") and item["roleRef"]["name"] in roles
    }


def test_no_secret_outside_of_named_namespaces_is_touched_unless_that_is_asked_for(render: Render) -> None:
    assert set(secrets_by_binding(render())) == {"default", "hams-system"}
    assert environment(render())["HAMS_WATCH_NAMESPACES"] == "default"
    everywhere = render({"controller": {"watchNamespaces": ["*"]}})
    assert "" in secrets_by_binding(everywhere)
    assert environment(everywhere)["HAMS_WATCH_NAMESPACES"] == ""


def test_the_webhook_is_asked_about_the_namespaces_that_are_watched(render: Render) -> None:
    def selector(objects: Objects) -> Any:
        (hook,) = one(objects, "ValidatingWebhookConfiguration", "hams.hams.dev")["webhooks"]
        return hook.get("namespaceSelector")

    assert selector(render({"controller": {"watchNamespaces": ["red", "blue"]}})) == {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["red", "blue"]}
        ]
    }
    assert selector(render({"controller": {"watchNamespaces": ["*"]}})) is None


def test_named_namespaces_are_all_that_the_controller_may_touch(render: Render) -> None:
    objects = render({"controller": {"watchNamespaces": ["red", "blue"]}})
    bindings = {
        item["metadata"]["namespace"]
        for item in objects
        if item["kind"] == "RoleBinding" and "namespace" in item["metadata"]
    }
    assert bindings >= {"red", "blue"}
    assert [item["roleRef"]["name"] for item in objects if item["kind"] == "ClusterRoleBinding"] == [
        "hams-controller-cluster"
    ]
    assert environment(objects)["HAMS_WATCH_NAMESPACES"] == "red,blue"


def test_the_graphs_of_a_namespace_that_has_taken_our_binding_along_can_be_let_go(render: Render) -> None:
    """It stands until their finalizers are gone; that is a patch."""
    rules = one(render(), "ClusterRole", "hams-controller-cluster")["rules"]
    assert {
        "apiGroups": ["hams.dev"],
        "resources": ["servicegraphs"],
        "verbs": ["list", "watch", "patch"],
    } in rules


def test_monitors_and_dashboard_come_when_asked_for(render: Render) -> None:
    monitors = ("ServiceMonitor", "PodMonitor")
    assert not [item for item in render() if item["kind"] in monitors]
    objects = render(
        {
            "metrics": {
                "serviceMonitor": {"enabled": True, "labels": {"team": "ml"}},
                "dashboard": {"enabled": True},
            }
        }
    )
    assert sorted(item["kind"] for item in objects if item["kind"] in monitors) == [
        "PodMonitor",
        "PodMonitor",
        "ServiceMonitor",
    ]
    ports = [
        item["spec"]["podMetricsEndpoints"][0]["port"] for item in objects if item["kind"] == "PodMonitor"
    ]
    assert ports == ["http", "probes"]  # of frontends; of all others
    assert one(objects, "ServiceMonitor", "hams-controller")["spec"]["endpoints"][0]["honorLabels"], (
        "the namespace of a graph's condition is the graph's"
    )
    board = json.loads(one(objects, "ConfigMap", "hams-dashboard")["data"]["hams.json"])
    assert board["panels"]


def test_the_dashboard_asks_for_metrics_that_are_exposed() -> None:
    board = (CHART / "dashboards" / "hams.json").read_text()
    asked = set(re.findall(r"hams_(?:frontend|proxy|manager|controller)_[a-z_]+", board))
    assert {name.split("_")[1] for name in asked} == {"frontend", "proxy", "manager", "controller"}
    frontends = "\n".join(
        path.read_text() for path in Path(ROOT / "sidecar" / "hams_sidecar" / "endpoint").glob("*.py")
    )
    others = (
        "sidecar/hams_sidecar/proxy_metrics.py",
        "operator/hams_operator/manager/process.py",
        "operator/hams_operator/controller/process.py",
    )
    exposed = set(re.findall(r'"(hams_[a-z_]+)"', "\n".join((ROOT / name).read_text() for name in others)))
    for name in asked:
        # prometheus_client adds the subsystem in front, and _total or _bucket behind
        if name.startswith("hams_frontend_"):
            assert f'"{re.sub("_(total|bucket)$", "", name.removeprefix("hams_frontend_"))}"' in frontends, (
                name
            )
        else:
            assert name in exposed, name


def test_alerts_come_when_asked_for_and_ask_for_metrics_that_there_are(render: Render) -> None:
    assert not [item for item in render() if item["kind"] == "PrometheusRule"]
    objects = render({"metrics": {"rules": {"enabled": True, "labels": {"release": "prometheus"}}}})
    rule = one(objects, "PrometheusRule", "hams")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    sources = "\n".join(
        (ROOT / "operator" / "hams_operator" / name).read_text()
        for name in ("manager/process.py", "controller/process.py")
    )
    alerts = rule["spec"]["groups"][0]["rules"]
    assert len({item["alert"] for item in alerts}) == len(alerts) >= 6
    for item in alerts:
        for name in re.findall(r"hams_(?:controller|manager|proxy)_[a-z_]+", item["expr"]):
            assert f'"{name}"' in sources, name
        for kind in re.findall(r'type="([A-Za-z]+)"', item["expr"]):
            assert kind in CONDITIONS
        assert item["annotations"]["summary"]


def test_the_format_of_logs_reaches_the_controller(render: Render) -> None:
    assert environment(render())["HAMS_LOG_FORMAT"] == "text"
    assert environment(render({"logFormat": "json"}))["HAMS_LOG_FORMAT"] == "json"


def test_every_object_bears_the_labels_of_its_release(render: Render) -> None:
    for item in render():
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "hams", item["metadata"]["name"]


def test_images_come_from_the_registry_with_the_tag(render: Render) -> None:
    objects = render({"image": {"registry": "registry.example:5000/team", "tag": "7"}})
    images = {container["image"] for _, _, container in containers(objects)}
    official = yaml.safe_load((CHART / "values.yaml").read_text())["etcd"]["image"]
    assert images == {"registry.example:5000/team/hams-controller:7", official}
    assert official.startswith("quay.io/coreos/etcd:v"), "an image that is there for everybody"
    bare = render({"image": {"registry": "registry.example:5000/team", "tag": "7"}, "etcd": {"image": ""}})
    assert {container["image"] for _, _, container in containers(bare)} == {
        "registry.example:5000/team/hams-controller:7",
        "registry.example:5000/team/hams-etcd:7",
    }
    assert environment(objects)["HAMS_SIDECAR_IMAGE"] == "registry.example:5000/team/hams-sidecar:7"
