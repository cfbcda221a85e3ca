"""What the scenarios do to the release, by the words that helm and kubectl get."""

from pathlib import Path

import pytest
from e2e.cluster.choice import ExistingCluster
from e2e.cluster.cluster import Cluster
from e2e.cluster.commands import CommandFailed
from e2e.cluster.layout import Folders
from e2e.cluster.machine import NotPossible
from e2e.scenarios import install
from e2e.scenarios.hits import also_called
from e2e.scenarios.install import Installation


class Quiet(Cluster):
    """Does nothing and remembers it."""

    def __init__(self, folder: Path, said: list[str]) -> None:
        super().__init__(Folders(folder, folder))
        self.said = said

    def kubectl(self, *words: object, stdin: str = "") -> str:
        self.said.append(f"kubectl {words[0]} {words[1]} {words[4]}")
        return ""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every command, in order; the release is at revision 7."""
    seen: list[str] = []

    def run(*words: object, env: dict[str, str]) -> str:
        seen.append(" ".join(str(word) for word in words if word != install.CHART))
        return '{"version": 7}' if "status" in words else ""

    monkeypatch.setattr(install, "run", run)
    monkeypatch.setattr(install, "helm", lambda cluster: "helm")
    return seen


WAITED_FOR = [
    "kubectl rollout status statefulset/hams-etcd",
    "kubectl rollout status deployment/hams-controller",
]
UPGRADED = "helm upgrade hams --reset-then-reuse-values --set=image.tag=next --namespace hams-system"
BACK = ["helm rollback hams 7 --namespace hams-system", *WAITED_FOR]


def scenario(said: list[str]) -> None:
    said.append("the scenario")
    raise AssertionError("no reply")


def test_a_release_is_left_as_it_was_found_though_the_scenario_fails(said: list[str], tmp_path: Path) -> None:
    installation = Installation(Quiet(tmp_path, said))
    with pytest.raises(AssertionError, match="no reply"), installation.upgraded(**{"image.tag": "next"}):
        scenario(said)
    assert said == ["helm status hams --output json --namespace hams-system", UPGRADED, "the scenario", *BACK]


def test_so_is_one_whose_upgrade_fails(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = install.run

    def run(*words: object, env: dict[str, str]) -> str:
        done = before(*words, env=env)
        if "upgrade" in words:
            raise CommandFailed("no")
        return done

    monkeypatch.setattr(install, "run", run)
    with (
        pytest.raises(CommandFailed, match="no"),
        Installation(Quiet(tmp_path, said)).upgraded(**{"image.tag": "next"}),
    ):
        scenario(said)
    assert said[1:] == [UPGRADED, *BACK]


def test_images_get_no_other_name_where_nobody_reaches_the_nodes() -> None:
    with pytest.raises(NotPossible, match="only CLUSTER=own"):
        also_called(ExistingCluster(), "a:1", "a:2")
