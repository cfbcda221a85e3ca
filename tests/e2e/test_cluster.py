"""The cluster's own parts, as far as they go without root: names, files, command lines, certificates."""

import json
import os
from pathlib import Path

import pytest
import yaml
from e2e.cluster import baked, binaries, certificates, components, machine, node, settings
from e2e.cluster.choice import AGENT_SOURCES, ExistingCluster, chosen
from e2e.cluster.cluster import Cluster, NotPossible
from e2e.cluster.commands import CommandFailed, NotInTime, run, until
from e2e.cluster.layout import NODES_MAX, ROOT, TOOLS, Folders, node_address, node_name, pod_network
from images.local.oci import Config, Image, files_layer, write_archive


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    (tmp_path / "state").mkdir()
    return Folders(tmp_path / "cache", tmp_path / "state")


def test_nodes_share_no_address() -> None:
    numbers = range(NODES_MAX)
    assert (
        len({node_address(number) for number in numbers} | {pod_network(number) for number in numbers})
        == 2 * NODES_MAX
    )


def test_what_a_node_reads_is_well_formed_and_names_the_node(folders: Folders) -> None:
    authority = certificates.make_control_plane(folders.pki, folders.state)
    settings.write_control_plane(folders)
    settings.write_node(folders, authority, 1)
    conf = folders.node(1) / "conf"
    kubelet = yaml.safe_load((conf / "kubelet.yaml").read_text())
    assert kubelet["cgroupRoot"].endswith("/node1")
    assert Path(kubelet["tlsCertFile"]).exists()
    proxy = yaml.safe_load((conf / "kube-proxy.yaml").read_text())
    assert proxy["hostnameOverride"] == "node1"
    assert Path(proxy["clientConnection"]["kubeconfig"]).exists()
    assert json.loads((conf / "cni/10-bridge.conflist").read_text())["plugins"][0]["ipam"]["ranges"] == [
        [{"subnet": pod_network(1)}]
    ]
    assert certificates.verifies(folders.pki, "node1")
    assert not certificates.verifies(folders.pki, "node1", "front-proxy-ca")
    assert (folders.kubeconfig.stat().st_mode & 0o077) == 0


def test_only_node_0_has_the_control_plane(folders: Folders) -> None:
    first, second = ({item.name for item in components.components(folders, number)} for number in (0, 1))
    assert second == {"containerd", "kubelet", "kube-proxy"}
    assert first - second == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "coredns",
    }


def test_no_component_waits_for_itself_or_for_what_nobody_brings(folders: Folders) -> None:
    for item in components.components(folders, 0):
        assert set(item.after) <= {
            "api",
            "tcp:127.0.0.1:2379",
            "unix:/run/containerd/containerd.sock",
            f"file:{folders.state}/dns-objects",
        }
        assert not (item.name == "kube-apiserver" and "api" in item.after)


def test_objects_of_dns_are_well_formed() -> None:
    kinds = [item["kind"] for item in yaml.safe_load_all(settings.DNS_OBJECTS)]
    assert kinds == ["ClusterRole", "ClusterRoleBinding", "Service", "EndpointSlice"]


def test_the_linker_is_told_the_version_of_the_module() -> None:
    assert binaries.version().startswith("v1.34.")
    assert f"k8s.io/component-base/version.gitVersion={binaries.version()}" in binaries.linker_flags()


def test_binaries_that_are_up_to_date_are_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stamp").write_text(binaries.stamp())
    monkeypatch.setenv("PATH", "")
    binaries.build(tmp_path)
    (tmp_path / "stamp").write_text("another")
    with pytest.raises(NotPossible, match="install Go"):
        binaries.build(tmp_path)


def test_a_go_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho go1.19.8\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NotPossible, match=r"Go 1.24 or newer is needed, found go1.19.8"):
        machine.check_go()


def test_what_is_missing_is_named_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        machine,
        "PACKAGES",
        {"sh": "dash", "no-such-program": "one", "/no/such/file": "another", "nor-this": "one"},
    )
    assert machine.missing() == ["one", "another"]
    (tmp_path / "apt-get").write_text("")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        NotPossible, match="as root: apt-get install --no-install-recommends dash one another"
    ):
        machine.install()


def test_nobody_but_root_makes_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotPossible, match="run as root"):
        machine.check_kernel()


def test_every_program_has_its_package() -> None:
    assert all((TOOLS / package / "main.go").exists() for package in binaries.PROGRAMS)


def test_a_pid_that_is_another_process_now_is_none(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    node.write_pid(file, os.getpid())
    assert node.read_pid(file) == os.getpid()
    file.write_text(f"{os.getpid()} 1")
    assert node.read_pid(file) is None
    file.write_text("nonsense")
    assert node.read_pid(file) is None
    assert node.read_pid(tmp_path / "none") is None


def test_what_fails_says_what_it_was(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="sh -c echo no >&2; exit 3: exit code 3\nno"):
        run("sh", "-c", "echo no >&2; exit 3")
    with pytest.raises(NotInTime, match="a thing: not within 0 s"):
        until(lambda: False, 0, "a thing", 0)


@pytest.mark.parametrize("nodes", [0, NODES_MAX + 1])
def test_a_cluster_of_too_many_or_no_nodes_is_refused(folders: Folders, nodes: int) -> None:
    with pytest.raises(NotPossible, match=f"asked for {nodes}"):
        Cluster(folders).up(nodes, [])


def test_node_0_cannot_be_cut_off(folders: Folders) -> None:
    with pytest.raises(NotPossible, match="node 0"):
        Cluster(folders).cut(0)


def test_down_of_nothing_is_harmless_and_leaves_the_cache(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "cache", tmp_path / "state")
    folders.cache.mkdir()
    Cluster(folders).down()
    assert folders.cache.exists()
    assert Cluster(folders).running() == []


def test_names_of_nodes_are_those_of_their_folders(folders: Folders) -> None:
    folders.node(2).mkdir()
    assert folders.nodes() == [2]
    assert folders.node(2).name == node_name(2)


def test_a_cluster_knows_which_images_are_newer_than_those_it_was_started_with(
    folders: Folders, tmp_path: Path
) -> None:
    def write(name: str, content: bytes) -> Path:
        layer = files_layer(tmp_path / "layer", tmp_path / "layer.tar", [("code", content, 0o644)])
        write_archive(
            tmp_path / name,
            f"hams.local/{name}:1",
            Image((layer,), Config(("run",), (), {}, "65532:65532", "/")),
        )
        return tmp_path / name

    archives = [write("1-one.tar", b"old"), write("1-two.tar", b"old")]
    cluster = Cluster(folders)
    assert cluster.outdated(archives) == ["1-one.tar", "1-two.tar"], "nobody noted what it was started with"
    folders.started_with.write_text(json.dumps(baked.contents(archives)))
    write("1-one.tar", b"old")  # written again, and the same
    assert cluster.outdated(archives) == []
    write("1-two.tar", b"new")
    assert cluster.outdated([*archives, write("2-three.tar", b"new")]) == ["1-two.tar", "2-three.tar"]


def test_an_unknown_kind_of_cluster_is_refused() -> None:
    with pytest.raises(NotPossible, match="own, kind, existing; found minikube"):
        chosen("minikube")


def test_an_existing_cluster_says_what_it_cannot_do() -> None:
    existing = ExistingCluster()
    for act in (
        lambda: existing.cut(1),
        lambda: existing.stop(1),
        lambda: existing.kill_pods("x"),
        lambda: existing.deaf("x", "y"),
        lambda: existing.load([]),
    ):
        with pytest.raises(NotPossible):
            act()


def test_the_agents_files_are_all_that_it_imports() -> None:
    own = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in AGENT_SOURCES}
    for path in AGENT_SOURCES:
        for line in (ROOT / path).read_text().splitlines():
            if line.startswith(("from e2e", "import e2e")):
                assert line.split()[1] in own, f"{path}: {line}"
