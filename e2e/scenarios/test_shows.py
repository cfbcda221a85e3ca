"""What an installation shows of itself: the chart's own test, what would be applied, who may do what, and how
a wrong graph is refused.

No row of the catalogue: nothing is broken here.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import CommandFailed, until
from e2e.scenarios.install import NAMESPACE as SYSTEM
from e2e.scenarios.install import RELEASE, Installation
from e2e.scenarios.run import NAMESPACE, GraphRun, graph_on, hams
from e2e.scenarios.variants import CHAIN, operator, variant
from hams_operator.cli.output import Output
from hams_operator.cli.render import render
from hams_operator.controller.options import options_from
from hams_operator.plan.difference import covers, key_of
from hams_operator.plan.names import CONTENT, Settings

Rule = tuple[str, str, str, str]
"""API group, resource, name ("": any), verb."""
CONTROLLER = f"{RELEASE}-controller"
NOBODY = "nobody-has-bound-this-one"
EVERYWHERE = ("ClusterRoleBinding",)
OWN_NAMESPACE = ("ClusterRoleBinding", "RoleBinding")
OWNED = "configmap,service,deployment,poddisruptionbudget,networkpolicy"


@pytest.fixture(scope="module")
def graph(installation: Installation) -> Iterator[GraphRun]:
    """The chain as the controller has applied it; nobody asks it anything."""
    with graph_on(installation, CHAIN) as run:
        yield run


def objects(text: str) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(text) if item]


def settings_of(installation: Installation) -> Settings:
    """What the controller is told of all graphs."""
    deployment = json.loads(
        installation.cluster.kubectl("get", "-n", SYSTEM, f"deployment/{CONTROLLER}", "-o", "json")
    )
    environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return options_from({item["name"]: item["value"] for item in environment if "value" in item}).settings


# -- the chart's own test, and the server's dry run ----------------------------------------------------------


def test_helm_test_passes(installation: Installation) -> None:
    assert re.findall(r"^Phase: +(\w+)$", installation.test(), re.MULTILINE) == ["Succeeded", "Succeeded"], (
        "the controller, and etcd"
    )


def test_what_helm_and_hams_render_passes_the_servers_dry_run(installation: Installation) -> None:
    settings = settings_of(installation)
    rendered = hams(
        "render", CHAIN, "--namespace", NAMESPACE, "--etcd", settings.etcd, "--image", settings.image
    )
    assert rendered.returncode == 0, rendered.stderr
    for text, namespace in ((installation.rendered(), SYSTEM), (rendered.stdout, NAMESPACE)):
        said = installation.cluster.kubectl(
            "apply", "--dry-run=server", "-n", namespace, "-f", "-", stdin=text
        ).splitlines()
        assert len(said) == len(objects(text)) > 10
        assert all(line.endswith("(server dry run)") for line in said), said


def test_what_is_rendered_is_what_the_controller_has_applied(
    graph: GraphRun, installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the token that probes bear, which the controller makes and `hams render` does not know, and so
    the digest of each Deployment."""
    assert (
        render(graph.history / "graph.yaml", NAMESPACE, settings_of(installation), graph.uid, Output.JSON)
        == 0
    )
    rendered = {key_of(item): item for item in json.loads(capsys.readouterr().out)["items"]}
    words = ("get", OWNED, "-n", NAMESPACE, "-l", f"hams.dev/graph={graph.name}", "-o", "json")
    held = {key_of(item): item for item in json.loads(graph.cluster.kubectl(*words))["items"]}
    assert rendered.keys() == held.keys()
    for key, item in rendered.items():
        if item["kind"] == "Deployment":
            assert (
                item["metadata"]["annotations"].pop(CONTENT) != held[key]["metadata"]["annotations"][CONTENT]
            )
        assert covers(held[key], item), key


# -- who may do what -----------------------------------------------------------------------------------------


def expanded(rules: Iterable[dict[str, Any]]) -> set[Rule]:
    """One by one, so that those of two places can be compared."""
    return {
        (group, resource, name, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or [""]
        for verb in rule["verbs"]
    }


def may(cluster: Cluster, account: str, of: str, there: str) -> tuple[set[Rule], set[tuple[str, str]]]:
    """What `kubectl auth can-i --list --as=...` asks the API server for and prints: what the account `of` a
    namespace may do `there`, and which paths it may ask for. An account that there is not may do what every
    account may."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": there},
    }
    said = cluster.kubectl(
        "create",
        f"--as=system:serviceaccount:{of}:{account}",
        "-o",
        "json",
        "--validate=false",
        "-f",
        "-",
        stdin=json.dumps(review),
    )
    status = json.loads(said)["status"]
    assert not status["incomplete"], status
    paths = {
        (path, verb)
        for rule in status["nonResourceRules"]
        for path in rule["nonResourceURLs"]
        for verb in rule["verbs"]
    }
    return expanded(status["resourceRules"]), paths


def granted(chart: list[dict[str, Any]], account: str, bindings: tuple[str, ...]) -> set[Rule]:
    """What the chart gives an account by bindings of these kinds."""
    rules = {key_of(item): item["rules"] for item in chart if item["kind"] in ("ClusterRole", "Role")}
    bound = [
        item["roleRef"]
        for item in chart
        if item["kind"] in bindings and account in [subject["name"] for subject in item["subjects"]]
    ]
    return {rule for role in bound for rule in expanded(rules[role["kind"], role["name"]])}


@pytest.mark.parametrize(
    ("there", "bindings"), [(SYSTEM, OWN_NAMESPACE), (NAMESPACE, EVERYWHERE)], ids=["at-home", "elsewhere"]
)
def test_the_controller_may_do_what_its_roles_say_and_nothing_else(
    installation: Installation, there: str, bindings: tuple[str, ...]
) -> None:
    chart = objects(installation.rendered())
    rules, paths = may(installation.cluster, CONTROLLER, SYSTEM, there)
    least, every_path = may(installation.cluster, NOBODY, SYSTEM, there)
    assert rules - least == granted(chart, CONTROLLER, bindings)
    assert paths == every_path


def test_parts_of_graphs_and_of_etcd_may_do_nothing(graph: GraphRun, installation: Installation) -> None:
    """But what every account may: ask who it is and what it may do, and which APIs there are."""
    words = ("get", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=etcd", "-o", "json")
    pods = [*graph.pods().values(), *json.loads(installation.cluster.kubectl(*words))["items"]]
    accounts = {(pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]) for pod in pods}
    assert {namespace for namespace, _ in accounts} == {SYSTEM, NAMESPACE}
    for namespace, account in accounts:
        rules, paths = may(installation.cluster, account, namespace, namespace)
        assert (rules, paths) == may(installation.cluster, NOBODY, namespace, namespace), account
        assert all(
            resource.startswith("selfsubject") and verb == "create" for _, resource, _, verb in rules
        ), rules
        assert {verb for _, verb in paths} == {"get"}, paths


# -- a wrong graph -------------------------------------------------------------------------------------------


def wrong(spec: dict[str, Any]) -> None:
    """An edge with a slip in it, and an output of an operator that there is not: for the CRD alone both are
    in order."""
    operator(spec, "b")["inputs"] = ["a.xx"]
    spec["outputs"][1]["from"] = "nobody.count"


def test_a_wrong_graph_is_refused_in_the_words_of_hams_validate(
    installation: Installation, tmp_path: Path
) -> None:
    """But for the numbers of lines, which an object does not have."""
    cluster, file = installation.cluster, variant(tmp_path, "wrong", wrong)
    refused_here = hams("validate", file)
    problems = [re.sub(r" \(line \d+\)$", "", line) for line in refused_here.stderr.splitlines()[:-1]]
    assert (refused_here.returncode, len(problems)) == (1, 2), refused_here.stderr
    trusted = (
        "get",
        "validatingwebhookconfiguration",
        f"{RELEASE}.hams.dev",
        "-o",
        "jsonpath={.webhooks[0].clientConfig.caBundle}",
    )
    until(lambda: cluster.kubectl(*trusted), 60, "the webhook's authority in its configuration", 0.2)
    try:
        with pytest.raises(CommandFailed) as refused:
            cluster.kubectl("apply", "-n", NAMESPACE, "-f", file)
    finally:
        cluster.kubectl(
            "delete", "servicegraph", "wrong", "-n", NAMESPACE, "--ignore-not-found", "--wait=false"
        )
    assert str(refused.value).partition("denied the request: ")[2].splitlines() == problems
