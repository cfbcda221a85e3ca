"""The objects of a graph."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml

from hams_graph.fields import bytes_of
from hams_operator.plan.desired import desired
from hams_operator.plan.names import (
    FRONTEND_ROLE,
    GRAPH,
    MODEL,
    OPERATOR,
    PROXY,
    ROLE,
    RUNS,
    GraphRef,
    Settings,
)
from hams_protocol import limits as core
from hams_sidecar.endpoint.limits import drain_s_max as open_requests_s_max
from hams_sidecar.frontend_memory import frontend_memory
from hams_wire.spec import decode_spec, encode_spec

from .kit import PAIR, PLACE, SETTINGS, UID, Json, graph, objects, planned, pod_of, with_change

ROOT = Path(__file__).resolve().parents[3]


def test_a_graph_is_a_config_map_a_service_and_a_deployment_and_budget_for_each_part() -> None:
    items = objects()
    parts = ("manager", "pass", "count", "frontend")
    assert {name for kind, name in items if kind == "Deployment"} == {f"pair-{part}" for part in parts}
    assert {name for kind, name in items if kind == "PodDisruptionBudget"} == {
        f"pair-{part}" for part in parts
    }
    assert {key for key in items if key[0] not in ("Deployment", "PodDisruptionBudget")} == {
        ("ConfigMap", "pair-graph"), ("Service", "pair"),
        ("NetworkPolicy", "pair-peers"), ("NetworkPolicy", "pair-clients")
    }  # fmt: skip


def test_every_object_is_owned_by_the_resource_and_lies_in_its_namespace() -> None:
    for item in objects().values():
        assert item["metadata"]["namespace"] == "shop"
        assert [
            (owner["kind"], owner["uid"], owner["controller"])
            for owner in item["metadata"]["ownerReferences"]
        ] == [("ServiceGraph", UID, True)]
        assert item["metadata"]["labels"][GRAPH] == "pair"


@pytest.mark.parametrize(
    "labels",
    ["{app.kubernetes.io/managed-by: Helm}", "{hams.dev/operator: pass}", "{hams.dev/graph: null}"],
)
def test_a_template_takes_no_pod_away_from_the_controller(labels: str) -> None:
    """It sees pods by their labels only. One that says who else manages it is a usual one."""
    template = f"frontend: {{podTemplate: {{metadata: {{labels: {labels}, annotations: {{a: b}}}}}}}}"
    there = pod_of(with_change("spec:\n  inputs", f"spec:\n  {template}\n  inputs"), "pair-frontend")
    assert there["metadata"]["labels"] == pod_of(PAIR, "pair-frontend")["metadata"]["labels"]
    assert there["metadata"]["annotations"]["a"] == "b"


def test_without_a_resource_nothing_owns_the_objects() -> None:
    place = GraphRef("pair", "shop")
    plan = planned(place=place)
    assert all("ownerReferences" not in item["metadata"] for item in plan)


def test_there_are_as_many_pods_as_local_instances() -> None:
    items = objects()
    deployments = {name: item for (kind, name), item in items.items() if kind == "Deployment"}
    assert {name: item["spec"]["replicas"] for name, item in deployments.items()} == {
        "pair-manager": 3, "pair-frontend": 2, "pair-count": 2, "pair-pass": 3
    }  # fmt: skip


def test_the_config_map_holds_the_graph_that_the_processes_ask_for() -> None:
    items = objects()
    spec = items["ConfigMap", "pair-graph"]["data"]["spec.json"]
    assert decode_spec(spec.encode()).data == graph().data
    for (kind, _), item in items.items():
        if kind == "Deployment":
            pod = item["spec"]["template"]["spec"]
            command = (pod.get("initContainers") or pod["containers"])[0]["command"]
            assert command[command.index("--graph") + 1] == UID
            assert command[command.index("--pod") + 1] == "$(POD_NAME)"


def test_the_proxy_is_a_native_sidecar_that_is_told_to_leave_at_once() -> None:
    pod = pod_of(PAIR, "pair-count")["spec"]
    proxy = pod["initContainers"][0]
    assert (proxy["name"], proxy["restartPolicy"], pod["containers"][0]["name"]) == (PROXY, "Always", MODEL)
    hook = proxy["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:-1] == ["python3", "-I", "-m", "hams_sidecar.pre_stop"]
    assert hook[-1] == proxy["command"][proxy["command"].index("--pid-file") + 1]
    assert "lifecycle" not in pod["containers"][0]
    assert pod["shareProcessNamespace"] is True
    drain = float(proxy["command"][proxy["command"].index("--drain-s") + 1])
    assert drain < pod["terminationGracePeriodSeconds"]


def test_a_frontend_answers_its_clients_and_hands_over_within_its_grace() -> None:
    pod = pod_of(PAIR, "pair-frontend")["spec"]
    command = pod["containers"][0]["command"]
    propagation, drain = (
        float(command[command.index(option) + 1]) for option in ("--propagation-s", "--drain-s")
    )
    assert propagation + open_requests_s_max + drain < pod["terminationGracePeriodSeconds"]
    assert drain > 2 * core.leave_wait_s, "it is let go, if a log takes no longer to copy than that"


def test_model_and_proxy_share_a_socket_in_memory() -> None:
    pod = pod_of(PAIR, "pair-pass")["spec"]
    assert {"name": "link", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}} in pod["volumes"]
    sockets = set()
    for container, words in ((pod["initContainers"][0], "command"), (pod["containers"][0], "args")):
        assert {"name": "link", "mountPath": "/run/hams"} in container["volumeMounts"]
        sockets.add(container[words][container[words].index("--socket") + 1])
    assert sockets == {"/run/hams/model.sock"}
    assert {"name": "MODE", "value": "fast"} in pod["containers"][0]["env"]


def pods() -> list[Json]:
    return [item["spec"]["template"] for (kind, _), item in objects().items() if kind == "Deployment"]


def test_pods_keep_the_restricted_profile_and_have_no_token() -> None:
    for pod in pods():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert not any("hostPath" in volume for volume in spec["volumes"])
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_readiness_is_asked_of_the_process_that_has_the_role() -> None:
    for pod in pods():
        container = (pod["spec"].get("initContainers") or pod["spec"]["containers"])[0]
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}
        assert container["command"][container["command"].index("--probe-port") + 1] == "8082"


def test_pods_are_replaced_a_new_one_first_and_evicted_one_at_a_time() -> None:
    items = objects()
    for (kind, name), item in items.items():
        if kind == "Deployment":
            assert item["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
            budget = items["PodDisruptionBudget", name]
            assert budget["spec"]["selector"] == item["spec"]["selector"]
            assert budget["spec"]["maxUnavailable"] == 1
            labels = item["spec"]["template"]["metadata"]["labels"]
            assert item["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_only_replica_of_a_state_is_never_evicted() -> None:
    alone = with_change("{backups: 1}", "{backups: 0}")
    assert objects(alone)["PodDisruptionBudget", "pair-count"]["spec"]["maxUnavailable"] == 0


def test_no_two_workloads_claim_a_pod() -> None:
    items = [item for (kind, _), item in objects().items() if kind == "Deployment"]
    for item in items:
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert (
            sum(1 for other in items if other["spec"]["selector"]["matchLabels"].items() <= labels.items())
            == 1
        )


def test_a_primary_and_its_backup_are_kept_apart() -> None:
    term = pod_of(PAIR, "pair-count")["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ][0]
    assert term["podAffinityTerm"] == {
        "labelSelector": {"matchLabels": {GRAPH: "pair", OPERATOR: "count"}},
        "topologyKey": "kubernetes.io/hostname"
    }  # fmt: skip


def test_the_service_finds_the_frontends_of_any_incarnation() -> None:
    assert objects()["Service", "pair"]["spec"]["selector"] == {GRAPH: "pair", ROLE: FRONTEND_ROLE}


def test_certificates_are_mounted_by_our_containers_and_not_by_models() -> None:
    for (kind, name), item in objects().items():
        if kind != "Deployment":
            continue
        pod = item["spec"]["template"]["spec"]
        volume = next(volume for volume in pod["volumes"] if volume["name"] == "tls")
        assert volume["secret"] == {"secretName": "pair-hams-tls", "defaultMode": 0o440}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "tls"]
            named = "--tls" in container["command"]
            assert (mounts, named) == (
                ([], False) if container["name"] == "model" else (["/etc/hams-tls"], True)
            ), name


def test_without_certificates_nothing_of_them_is_left() -> None:
    text = str(planned(settings=replace(SETTINGS, tls=False)))
    assert "tls" not in text
    assert "Authorization" not in text


def test_probes_bear_the_token_of_the_graph() -> None:
    compiled = graph()
    seen = 0
    for item in desired(compiled, encode_spec(compiled).decode(), PLACE, SETTINGS, "secret"):
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                for probe in ("readinessProbe", "livenessProbe"):
                    if probe in container:
                        assert container[probe]["httpGet"]["httpHeaders"] == [
                            {"name": "Authorization", "value": "Bearer secret"}
                        ]
                        seen += 1
    assert seen == 8


def test_a_pod_template_is_merged_over_model_and_proxy() -> None:
    text = with_change(
        '{entrypoint: "m:Count", image: "m:1"}',
        '{entrypoint: "m:Count", image: "m:1"}\n'
        "    podTemplate:\n"
        "      metadata: {annotations: {team: a}}\n"
        "      spec:\n"
        "        runtimeClassName: nvidia\n"
        "        tolerations: [{key: gpu, operator: Exists}]\n"
        "        containers:\n"
        '        - {name: model, resources: {limits: {"nvidia.com/gpu": 1}}, volumeMounts: [{name: data, '
        "mountPath: /data}]}\n"
        '        - {name: proxy, resources: {requests: {memory: "1Gi"}}}\n'
        "        volumes: [{name: data, emptyDir: {}}]",
    )
    pod = pod_of(text, "pair-count")
    model, proxy = pod["spec"]["containers"][0], pod["spec"]["initContainers"][0]
    assert len(pod["spec"]["containers"]) == len(pod["spec"]["initContainers"]) == 1
    assert model["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert model["image"] == "m:1"
    assert [mount["name"] for mount in model["volumeMounts"]] == ["link", "tmp", "data"]
    assert proxy["resources"]["requests"] == {"cpu": "100m", "memory": "1Gi"}
    assert {volume["name"] for volume in pod["spec"]["volumes"]} == {"tls", "link", "tmp", "data"}
    assert pod["metadata"]["annotations"]["team"] == "a"
    assert pod["spec"]["runtimeClassName"] == "nvidia"


def replaced(change: tuple[str, str]) -> set[str]:
    """Workloads whose pods are replaced by a change."""
    before, after = objects(), objects(with_change(*change))
    keys = [key for key in before if key[0] == "Deployment"]
    return {
        name
        for kind, name in keys
        if before[kind, name]["spec"]["template"] != after[kind, name]["spec"]["template"]
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('"m:Count", image: "m:1"', '"m:Count", image: "m:2"'), {"pair-count"}),
        (('"m:Count", image: "m:1"', '"m:Count", image: "m:1", config: {a: 1}'), {"pair-count"}),
        (("standby: {hot: 1}", "standby: {hot: 2}"), set()),
        (("replicas: 2\n", "replicas: 3\n"), {"pair-manager"}),
        (("{backups: 1}", "{backups: 2}"), {"pair-manager"}),
        (("spec:\n", "spec:\n  frontend: {replicas: 3}\n"), {"pair-manager"}),
        (("spec:\n", "spec:\n  managers: {replicas: 5}\n"), set()),
        (("spec:\n", "spec:\n  frontend: {requestTimeout: 5s}\n"), {"pair-frontend"}),
    ],
    ids=["image", "config", "standbys", "replicas", "backups", "frontends", "managers", "timeout"],
)
def test_a_change_replaces_the_pods_that_depend_on_it_and_no_others(
    change: tuple[str, str], expected: set[str]
) -> None:
    assert replaced(change) == expected


def test_another_sidecar_image_replaces_every_pod_but_not_what_they_run() -> None:
    before, after = objects(), objects(settings=Settings(etcd=SETTINGS.etcd, image="hams.test/sidecar:2"))
    for key in before:
        if key[0] == "Deployment":
            one, other = (item[key]["spec"]["template"] for item in (before, after))
            assert one != other
            assert one["metadata"]["annotations"][RUNS] == other["metadata"]["annotations"][RUNS]


def test_a_history_is_recorded_only_where_the_settings_say_so() -> None:
    items = objects(settings=Settings(history="/var/history"))
    spec = items["Deployment", "pair-count"]["spec"]["template"]["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert {"name": "HAMS_HISTORY", "value": "/history"} in container["env"]
        assert {"name": "history", "mountPath": "/history"} in container["volumeMounts"]


def test_the_plan_is_the_same_each_time_and_plain_json() -> None:
    assert objects() == objects()
    for item in objects().values():
        assert json.loads(msgspec.json.encode(item)) == item


@pytest.mark.parametrize("name", ["digits", "chain", "next-word", "reading", "semantic-cache", "stocks"])
def test_examples_run_on_kubernetes_as_they_stand(name: str) -> None:
    file = ROOT / "examples" / name / "graph.yaml"
    place = GraphRef(name, "default")
    plan = planned(file.read_text(), place)
    images = {
        container["image"]
        for item in plan
        if item["kind"] == "Deployment"
        for container in item["spec"]["template"]["spec"]["containers"]
    }
    assert f"hams.local/hams-example-{name}:0.1.0" in images


def test_a_place_names_what_it_holds() -> None:
    later = GraphRef("pair", "shop", UID, incarnation=2)
    assert (PLACE.graph_uid(), later.graph_uid()) == (UID, f"{UID}-r2")
    assert (PLACE.workload("count"), later.workload("count")) == ("pair-count", "pair-count-r2")
    assert PLACE.url == "http://pair.shop.svc:8080"


def test_clients_tokens_are_mounted_where_they_are_asked_for_and_nowhere_else() -> None:
    text = with_change("spec:\n", "spec:\n  frontend: {tokenSecret: pair-clients}\n")
    for (kind, name), item in objects(text).items():
        if kind == "Deployment":
            pod = item["spec"]["template"]["spec"]
            volumes = [
                volume["secret"]["secretName"] for volume in pod["volumes"] if volume["name"] == "tokens"
            ]
            named = "--tokens" in str(pod["containers"][0]["command"])
            assert (volumes, named) == ((["pair-clients"], True) if name == "pair-frontend" else ([], False))
    runs = {
        name: objects(text)["Deployment", name]["spec"]["template"]["metadata"]["annotations"][RUNS]
        for name in ("pair-count", "pair-frontend")
    }
    before = {
        name: objects()["Deployment", name]["spec"]["template"]["metadata"]["annotations"][RUNS]
        for name in runs
    }
    assert runs["pair-count"] == before["pair-count"], "pods of operators are not replaced for it"
    assert runs["pair-frontend"] != before["pair-frontend"]


# -- sizes and placement -------------------------------------------------------------------------------------


def containers() -> list[tuple[str, Json]]:
    seen = []
    for pod in pods():
        spec = pod["spec"]
        seen += [(item["name"], item) for item in (*spec.get("initContainers", ()), *spec["containers"])]
    return seen


def test_every_container_asks_for_what_it_takes_and_ours_end_at_a_limit() -> None:
    for name, item in containers():
        assert {"cpu", "memory"} <= set(item["resources"]["requests"]), name
        assert ("memory" in item["resources"].get("limits", {})) is (name != "model"), name
    limits = {name: item["resources"].get("limits", {}).get("memory") for name, item in containers()}
    assert limits == {"model": None, "proxy": "4352Mi", "frontend": "1536Mi", "manager": "256Mi"}


@pytest.mark.parametrize(
    ("bounds", "limit"),
    [
        ("{shards: 2, maxInFlightBytes: 64Mi}", "1536Mi"),
        ("{shards: 8}", "3840Mi"),
        ("{maxInFlightBytes: 2Gi, maxRequestBytes: 1536Mi}", "8704Mi"),
    ],
)
def test_the_limit_of_a_frontend_follows_the_bounds_of_its_graph(bounds: str, limit: str) -> None:
    text = with_change("spec:\n", f"spec:\n  frontend: {bounds}\n")
    frontend = pod_of(text, "pair-frontend")["spec"]["containers"][0]
    assert frontend["resources"]["limits"] == {"memory": limit}
    assert bytes_of(limit) > frontend_memory(graph(text).data.frontend).nbytes


def test_every_volume_in_memory_has_a_size() -> None:
    for pod in pods():
        for volume in pod["spec"]["volumes"]:
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                assert volume["emptyDir"]["sizeLimit"]


def of_count(template: str) -> str:
    return with_change(
        '{entrypoint: "m:Count", image: "m:1"}',
        f'{{entrypoint: "m:Count", image: "m:1"}}\n    podTemplate: {template}',
    )


@pytest.mark.parametrize(
    ("template", "limit"),
    [
        ("{spec: {volumes: [{name: link, emptyDir: {sizeLimit: 1Gi}}]}}", "1280Mi"),
        ("{spec: {containers: [{name: proxy, resources: {limits: {memory: 6Gi}}}]}}", "6Gi"),
    ],
)
def test_a_proxys_limit_follows_the_memory_that_it_shares_unless_it_is_given(
    template: str, limit: str
) -> None:
    proxy = pod_of(of_count(template), "pair-count")["spec"]["initContainers"][0]
    assert proxy["resources"]["limits"] == {"memory": limit}
    assert proxy["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}


@pytest.mark.parametrize(
    ("resources", "requests"),
    [
        ("{limits: {memory: 192Mi}}", {"cpu": "100m", "memory": "192Mi"}),
        ("{limits: {memory: 8Gi, cpu: 4}}", {"cpu": "100m", "memory": "256Mi"}),
        ("{limits: {cpu: 50m}}", {"cpu": "50m", "memory": "256Mi"}),
        ("{limits: {cpu: 0.05}}", {"cpu": 0.05, "memory": "256Mi"}),
        ("{limits: {memory: much}}", {"cpu": "100m", "memory": "256Mi"}),
        ("{limits: {memory: 192Mi}, requests: {memory: 200Mi}}", {"cpu": "100m", "memory": "200Mi"}),
    ],
)
def test_a_default_request_is_not_above_a_limit_that_a_template_sets(resources: str, requests: Json) -> None:
    pod = pod_of(
        of_count(f"{{spec: {{containers: [{{name: model, resources: {resources}}}]}}}}"), "pair-count"
    )
    assert pod["spec"]["containers"][0]["resources"]["requests"] == requests


@pytest.mark.parametrize("resources", ["x", "[1]", "{limits: x}", "{limits: [1], requests: 3}"])
@pytest.mark.parametrize("name", ["model", "proxy"])
def test_resources_that_are_no_mapping_are_left_to_the_api_server(name: str, resources: str) -> None:
    spec = pod_of(
        of_count(f"{{spec: {{containers: [{{name: {name}, resources: {resources}}}]}}}}"), "pair-count"
    )["spec"]
    found = {item["name"]: item["resources"] for item in (*spec["initContainers"], *spec["containers"])}
    given = yaml.safe_load(resources)
    if isinstance(given, dict):
        assert found[name].items() >= given.items()
    else:
        assert found[name] == given


def test_a_default_limit_is_not_below_a_request_that_a_template_sets() -> None:
    resources = "resources: {requests: {memory: 64Gi}}"
    of_proxy = of_count(f"{{spec: {{containers: [{{name: proxy, {resources}}}]}}}}")
    proxy = pod_of(of_proxy, "pair-count")["spec"]["initContainers"][0]
    assert proxy["resources"] == {"requests": {"cpu": "100m", "memory": "64Gi"}, "limits": {"memory": "64Gi"}}
    of_frontend = with_change(
        "spec:\n",
        f"spec:\n  frontend: {{podTemplate: {{spec: {{containers: [{{name: frontend, {resources}}}]}}}}}}\n",
    )
    frontend = pod_of(of_frontend, "pair-frontend")["spec"]["containers"][0]
    assert frontend["resources"]["limits"] == {"memory": "64Gi"}


UNREACHABLE = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


def stays(pod: Json) -> dict[str, int]:
    return {item["key"]: item.get("tolerationSeconds") for item in pod["spec"]["tolerations"]}


def test_pods_leave_a_node_that_is_away_after_half_a_minute_and_not_after_five() -> None:
    for pod in pods():
        assert stays(pod) == dict.fromkeys(UNREACHABLE, 30)


def test_how_long_pods_stay_on_a_node_that_is_away_may_be_said() -> None:
    text = with_change("spec:\n", "spec:\n  recovery: {evictAfter: 2m}\n")
    assert stays(pod_of(text, "pair-count")) == dict.fromkeys(UNREACHABLE, 120)


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ("[{key: gpu, operator: Exists}]", {"gpu": None} | dict.fromkeys(UNREACHABLE, 30)),
        (
            "[{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: "
            "7}]",
            {"node.kubernetes.io/unreachable": 7, "node.kubernetes.io/not-ready": 30},
        ),
    ],
)
def test_tolerations_of_a_template_come_before_these(tolerations: str, expected: Json) -> None:
    pod = pod_of(of_count(f"{{spec: {{tolerations: {tolerations}}}}}"), "pair-count")
    assert stays(pod) == expected


def test_frontends_managers_and_the_service_have_templates_of_their_own() -> None:
    text = with_change(
        "spec:\n",
        "spec:\n"
        "  frontend:\n"
        "    podTemplate: {spec: {nodeSelector: {pool: edge}, containers: [{name: frontend, resources: "
        "{limits: {memory: 2Gi}}}]}}\n"
        "    service: {metadata: {annotations: {lb: internal}, labels: {hams.dev/graph: other}}, spec: "
        "{type: LoadBalancer, selector: {a: b}}}\n"
        "  managers: {podTemplate: {spec: {priorityClassName: high}}}\n",
    )
    frontend = pod_of(text, "pair-frontend")["spec"]
    assert frontend["nodeSelector"] == {"pool": "edge"}
    assert frontend["containers"][0]["resources"]["limits"] == {"memory": "2Gi"}
    assert pod_of(text, "pair-manager")["spec"]["priorityClassName"] == "high"
    before, service = objects()["Service", "pair"], objects(text)["Service", "pair"]
    assert (service["spec"]["type"], service["metadata"]["annotations"]["lb"]) == ("LoadBalancer", "internal")
    assert service["spec"]["selector"] == before["spec"]["selector"], "it leads to this graph's frontends"
    assert service["metadata"]["labels"] == before["metadata"]["labels"]
    assert replaced(("spec:\n", "spec:\n  frontend: {service: {spec: {type: NodePort}}}\n")) == set()


def test_frontends_are_replaced_one_at_a_time_each_after_the_one_before_has_handed_over() -> None:
    spec = objects()["Deployment", "pair-frontend"]["spec"]
    assert spec["minReadySeconds"] >= 10
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "minReadySeconds" not in objects()["Deployment", "pair-count"]["spec"]


def test_every_part_writes_its_log_as_the_settings_say() -> None:
    items = objects(settings=Settings(log_format="json"))
    for (kind, _), item in items.items():
        if kind == "Deployment":
            spec = item["spec"]["template"]["spec"]
            ours = [
                one
                for one in (*spec.get("initContainers", ()), *spec["containers"])
                if one["name"] != "model"
            ]
            assert ours
            for container in ours:
                assert {"name": "HAMS_LOG_FORMAT", "value": "json"} in container["env"]
