"""`hams profile`: what it shows, and what it does in a pod."""

import asyncio
import base64
import inspect
import io
import socket
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from hams_operator.cli import in_pod_profile
from hams_operator.cli.cluster import Cluster
from hams_operator.cli.output import CommandError
from hams_operator.cli.profile import calibrated, feature_of, name_of, shown
from hams_operator.graph_seen import ClusterGraph
from hams_operator.plan.pods_seen import Pod
from hams_sidecar.profile_key import main as key_main
from hams_wire.probes import answer_probes
from hams_wire.profiles import CalibrationReport, ClassReport, ProfileReport, SizeReport, encode_report

CHAT = ClassReport("chat", None, 12.0, 412.4, 20.5, 19.0, 31.5, 40.25)
ALL = ClassReport(None, None, None, 512.0, 60.0, 40.0, 90.0, 99.0)
GOOD = CalibrationReport(100, 50.0, 51.5, 4.25, 0.97, 0.98)
REPORT = ProfileReport(
    "b", "b-1", "primary", "Distribution", "", 512, 2, 3, (CHAT, ALL), (SizeReport(4, 31.0, 1.0, 1.5),), GOOD
)


def text_of(report: ProfileReport) -> list[list[str]]:
    terminal = Console(width=150, file=io.StringIO(), record=True)
    for part in shown(report):
        terminal.print(part)
    return [line.split() for line in terminal.export_text().splitlines()]


def test_a_profile_is_shown_with_its_classes_in_ms_and_its_calibration() -> None:
    lines = text_of(REPORT)
    assert lines[0][:6] == ["b", "Distribution", "b-1", "(primary)", "512", "samples"]
    assert "forgotten" in lines[0]
    assert ["chat", "<", "12", "412", "20.50", "19.00", "31.50", "40.25"] in lines
    assert ["(all)", "-", "512", "60.00", "40.00", "90.00", "99.00"] in lines
    texts = [" ".join(line) for line in lines]
    assert "batches of more than one row (how many; mean, P50, P99 ms): 4 (31)" in texts
    assert [" ".join(line) for line in lines][-1] == (
        "calibration: 100 batches took 51.50 ms, 50.00 were predicted, 4.25 off in the mean; "
        "98.0 % on time, 97.0 % predicted"
    )


def test_a_profile_says_how_batches_were_chosen_what_they_take_and_how_old_it_is() -> None:
    sizes = (SizeReport(2, 40.0, 0.0, 1.2, 24.0, 22.5, 30.0, 36.25),)
    chosen = {"planned": 12, "full": 0, "quick": 3}
    texts = [
        " ".join(line)
        for line in text_of(replace(REPORT, sizes=sizes, decisions=chosen, stale_plans=2, newest_s=7.4))
    ]
    assert texts[0].endswith("newest 7 s ago")
    assert "batches of more than one row (how many; mean, P50, P99 ms): 2 (40; 24.00, 22.50, 36.25)" in texts
    assert "decisions: 12 planned, 3 quick; 2 plans were stale" in texts


def test_a_policy_that_was_replaced_and_an_empty_profile_say_so() -> None:
    nothing = CalibrationReport(0, None, None, None, None, None)
    replaced = ProfileReport("b", "b-1", "active", "Distribution", "it raised", 0, 0, 0, (), (), nothing)
    assert [" ".join(line) for line in text_of(replaced)][1:] == [
        "Fifo serves in its place: it raised",
        "nothing is learnt yet",
    ]
    assert calibrated(nothing) == "calibration: no batch was predicted yet"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(None, None, "-"), (None, 3.5, "< 3.5"), (3.5, 9.0, "3.5 to 9"), (9.0, None, ">= 9")],
)
def test_features_are_shown_as_ranges(low: float | None, high: float | None, text: str) -> None:
    assert feature_of(ClassReport("a", low, high, 1, 1, 1, 1, 1)) == text


@pytest.mark.parametrize(
    ("app", "text"), [(None, "(all)"), ("", "-"), ("chat", "chat"), ("\x1b[31mred", "'\\x1b[31mred'")]
)
def test_what_clients_call_their_applications_cannot_write_to_the_terminal(
    app: str | None, text: str
) -> None:
    assert name_of(ClassReport(app, None, None, 1, 1, 1, 1, 1)) == text


# -- in a pod ------------------------------------------------------------------------------------------------


def proc(folder: Path, *words: str) -> str:
    (folder / "7").mkdir()
    (folder / "7" / "cmdline").write_text(
        "\0".join((sys.executable, "-m", "hams_sidecar.proxy", *words)) + "\0"
    )
    (folder / "8").mkdir()
    (folder / "self").mkdir()
    return str(folder)


def port_of(server: asyncio.Server) -> str:
    """The port at the IPv4 address: another one than at that of IPv6, as it was chosen freely."""
    return next(str(one.getsockname()[1]) for one in server.sockets if one.family is socket.AF_INET)


async def in_the_pod(*words: str) -> tuple[int, str, str]:
    """The program as it is run there."""
    source = inspect.getsource(in_pod_profile)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", source, *words, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_in_a_pod_its_proxy_is_asked_with_the_token_of_its_probes(tmp_path: Path) -> None:
    server = await answer_probes(0, lambda: None, token="secret", profile=lambda: encode_report(REPORT))
    port = port_of(server)
    (tmp_path / "probe-token").write_text("secret\n")
    (tmp_path / "proc").mkdir()
    folder = proc(tmp_path / "proc", "--probe-port", port, "--tls", str(tmp_path))
    code, out, _ = await in_the_pod("show", folder)
    assert (code, out.strip().encode()) == (0, encode_report(REPORT))
    (tmp_path / "probe-token").write_text("wrong")
    code, out, err = await in_the_pod("show", folder)
    assert (code, out) == (1, "")
    assert "expected Authorization" in err
    server.close()


async def test_a_proxy_that_learns_nothing_and_a_pod_without_one_say_so(tmp_path: Path) -> None:
    server = await answer_probes(0, lambda: None)
    folder = proc(tmp_path, "--probe-port", port_of(server))
    code, out, err = await in_the_pod("show", folder)
    assert (code, out) == (0, "")
    assert "nothing is learnt here" in err
    server.close()
    (tmp_path / "7" / "cmdline").unlink()
    assert (await in_the_pod("show", folder))[::2] == (1, "no proxy runs in this pod\n")


def test_in_a_pod_etcd_is_reached_as_the_proxy_reaches_it() -> None:
    words = ["py", "-m", "hams_sidecar.proxy", "--graph", "u", "--etcd", "http://e:1", "--operator", "b"]
    where = ["--graph", "u", "--etcd", "http://e:1", "--operator", "b"]
    command = ["py", "-m", "hams_sidecar.profile_key", "forget", *where]
    assert in_pod_profile.on_key(words, "forget") == command
    assert in_pod_profile.on_key([*words, "--tls", "/certs"], "forget") == [*command, "--tls", "/certs"]
    given = in_pod_profile.on_key(words, "give", "--characters", "9")
    assert given == ["py", "-m", "hams_sidecar.profile_key", "give", *where, "--characters", "9"]


def test_an_etcd_that_does_not_answer_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--graph", "u", "--etcd", "http://127.0.0.1:1", "--operator", "b"]
    for action in ("forget", "read"):
        assert key_main([action, *where]) == 1
        assert capsys.readouterr().err.startswith("etcd does not answer: ")


def test_in_a_pod_what_is_no_profile_is_refused_before_etcd_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["--graph", "u", "--etcd", "http://127.0.0.1:1", "--operator", "b"]
    for text, said in (("!", "expected base64"), ("YWJj", "expected deflated JSON, found error")):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert key_main(["give", *where, "--characters", "9"]) == 1
        assert capsys.readouterr().err.startswith(f"no profile: {said}")


class Pods(Cluster):
    """A cluster whose graph and pods are written down; what is run in pods is noted."""

    def __init__(self, policy: str, pages: dict[str, str]) -> None:
        self.ran: list[tuple[str, str]] = []
        self.given: dict[str, bytes] = {}
        self._pages = pages
        self._policy = policy

    async def find(self, graph: str | None) -> ClusterGraph:
        batch = {"policy": self._policy} if self._policy else {}
        spec = {"operators": [{"name": "a"}, {"name": "b", "batch": batch}]}
        pods = [Pod(f"g-b-{number}", "b", ready=number < 3) for number in range(1, 4)]
        return ClusterGraph({"metadata": {"name": "g", "namespace": "n"}, "spec": spec}, tuple(pods))

    async def run_in(
        self,
        pod: str,
        container: str,
        command: list[str],
        may_end_container: bool = False,
        stdin: bytes = b"",
    ) -> str:
        assert container == "proxy"
        self.ran.append((pod, command[5]))
        if stdin:
            assert command[7] == str(len(stdin))
            self.given[pod] = base64.b64decode(stdin)
        return self._pages.get(pod, "")


async def test_on_a_cluster_ready_pods_are_asked_and_one_of_them_has_all_forget() -> None:
    cluster = Pods("Distribution", {"g-b-2": encode_report(REPORT).decode() + "\n"})
    assert await cluster.profile("g", "") == [REPORT]
    assert cluster.ran == [("g-b-1", "show"), ("g-b-2", "show")]
    cluster.ran.clear()
    assert await cluster.forget("g", "b") == ["b"]
    assert cluster.ran == [("g-b-1", "forget")]


async def test_on_a_cluster_one_pod_reads_and_gives_what_is_stored() -> None:
    cluster = Pods("Distribution", {"g-b-1": base64.b64encode(b"profile").decode() + "\n"})
    assert await cluster.stored("g", "") == {"b": b"profile"}
    await cluster.give("g", {"b": b"another"})
    assert cluster.given == {"g-b-1": b"another"}
    with pytest.raises(CommandError, match="no pod of a is ready"):
        await cluster.give("g", {"a": b"another"})


@pytest.mark.parametrize(
    ("policy", "operator", "said"),
    [
        ("Distribution", "a", "g: nothing is learnt of a: its batch.policy is Fifo"),
        ("Distribution", "c", 'g: no operator "c"; there are: a, b'),
        ("", "", "g: nothing is learnt: no operator has batch.policy Distribution"),
    ],
)
async def test_on_a_cluster_what_is_not_learnt_is_said(policy: str, operator: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        await Pods(policy, {}).profile("g", operator)
