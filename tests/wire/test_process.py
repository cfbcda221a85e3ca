"""How processes begin: instance ids, and the kubelet's probes."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hams_wire.errors import WireError
from hams_wire.exposition import Sample
from hams_wire.probes import answer_probes
from hams_wire.process import Access, common_arguments
from hams_wire.tls import digest_of, sealed


def test_an_instance_in_a_pod_has_a_fresh_id_at_every_start() -> None:
    first, second = (
        common_arguments("x", "y")
        .parse_args(["--graph", "g", "--etcd", "e", "--pod", "digits-learner-x2"])
        .instance
        for _ in range(2)
    )
    assert first != second
    assert first.startswith("digits-learner-x2-")


def test_a_process_may_open_as_many_files_as_its_hard_limit_says() -> None:
    limited = (
        "import resource\n"
        "from hams_wire import process\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))\n"
        "async def work(asked):\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "    return 0\n"
        "process.run(work, 'error')\n"
    )
    ended = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "(256, 256)"


@pytest.mark.parametrize("level", ["loud", "", "10"])
def test_a_log_level_that_is_none_is_refused_with_those_there_are(
    level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        common_arguments("hams-x", "y").parse_args(
            ["--graph", "g", "--etcd", "e", "--instance", "x-1", "--log-level", level]
        )
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "--log-level" in said
    assert "warning" in said


def test_a_log_level_may_be_in_capitals() -> None:
    assert (
        common_arguments("x", "y")
        .parse_args(["--graph", "g", "--etcd", "e", "--instance", "x-1", "--log-level", "DEBUG"])
        .log_level
        == "debug"
    )


def _port(server: asyncio.Server) -> int:
    return int(next(item for item in server.sockets if item.family is socket.AF_INET).getsockname()[1])


async def _ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    writer.write_eof()
    read = await reader.read()
    writer.close()
    return read


@pytest.mark.parametrize(
    ("request_line", "missing", "status"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", "starting", b"200"),
        (b"GET /readyz HTTP/1.1\r\n\r\n", None, b"200"),
        (b"GET /readyz HTTP/1.1\r\n\r\n", "joining, and not ready", b"503"),
        (b"GET / HTTP/1.1\r\n\r\n", None, b"404"),
        (b"POST /readyz HTTP/1.1\r\n\r\n", None, b"404"),
        (b"\x00\xff", None, b"404"),
    ],
)
async def test_probes_answer_what_is_true(request_line: bytes, missing: str | None, status: bytes) -> None:
    server = await answer_probes(0, lambda: missing)
    try:
        answer = await _ask(_port(server), request_line)
        assert answer.startswith(b"HTTP/1.1 " + status)
        if status == b"503":
            assert answer.endswith(b"joining, and not ready\n")
    finally:
        server.close()


async def test_metrics_are_what_the_process_says_and_its_own() -> None:
    samples = [
        Sample("hams_x_units_total", "Units.", 12345678.0),
        Sample("hams_x_role", "Roles.", 1, {"role": 'pri"mary\\\n'}),
        Sample("hams_x_role", "Roles.", 0, {"role": "backup"}),
    ]
    server = await answer_probes(0, lambda: "starting", lambda: samples)
    try:
        answer = await _ask(_port(server), b"GET /metrics HTTP/1.1\r\n\r\n")
    finally:
        server.close()
    assert answer.startswith(b"HTTP/1.1 200")
    families = {
        family.name: family
        for family in text_string_to_metric_families(answer.partition(b"\r\n\r\n")[2].decode())
    }
    assert families["hams_x_units"].type == "counter"
    assert families["hams_x_units"].samples[0].value == 12345678
    assert [(item.labels["role"], item.value) for item in families["hams_x_role"].samples] == [
        ('pri"mary\\\n', 1),
        ("backup", 0),
    ]
    assert families["process_resident_memory_bytes"].samples[0].value > 1 << 20


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"", b"401"),
        (b"Authorization: Bearer guess\r\n", b"401"),
        (b"Authorization: Bearer \r\n", b"401"),
        (b"Authorization: secret\r\n", b"401"),
        (b"X-Authorization: Bearer secret\r\n", b"401"),
        (b"authorization:Bearer secret\r\n", b"200"),
        (b"Host: x\r\nAuthorization: Bearer secret\r\nAccept: */*\r\n", b"200"),
    ],
)
async def test_with_a_token_probes_answer_only_who_bears_it(header: bytes, status: bytes) -> None:
    server = await answer_probes(0, lambda: None, token="secret", metrics_digest=digest_of(b"other"))
    try:
        for path in (b"/livez", b"/readyz", b"/metrics"):
            answer = await _ask(_port(server), b"GET " + path + b" HTTP/1.1\r\n" + header + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 " + status)
    finally:
        server.close()


async def test_the_token_of_metrics_opens_metrics_only() -> None:
    server = await answer_probes(0, lambda: None, token="secret", metrics_digest=digest_of(b"other"))
    try:
        for path, status in (
            (b"/livez", b"401"),
            (b"/readyz", b"401"),
            (b"/metrics", b"200"),
            (b"/metrics?x", b"401"),
            (b"/profile", b"401"),
            (b"/nothing", b"401"),
        ):
            answer = await _ask(
                _port(server), b"GET " + path + b" HTTP/1.1\r\nAuthorization: Bearer other\r\n\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 " + status), path
        digest = digest_of(b"other").hex().encode()
        for guess in (digest, b"sha256:" + digest):  # what lies in the Secret of a graph opens nothing
            answer = await _ask(
                _port(server), b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer " + guess + b"\r\n\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 401")
    finally:
        server.close()


@pytest.mark.parametrize("held", [sealed(b"other"), b"other\n"])
def test_the_token_of_metrics_is_known_by_its_digest_and_by_what_older_controllers_wrote(
    tmp_path: Path, held: bytes
) -> None:
    (tmp_path / "metrics-token").write_bytes(held)
    assert Access("https://etcd:2379", tmp_path).metrics_digest() == digest_of(b"other")
    (tmp_path / "metrics-token").write_text("sha256:no")
    with pytest.raises(WireError, match="metrics-token"):
        Access("https://etcd:2379", tmp_path).metrics_digest()
    assert Access("http://etcd:2379").metrics_digest() == b""


async def test_a_line_without_end_closes_the_connection_only() -> None:
    server = await answer_probes(0, lambda: None)
    try:
        port = _port(server)
        assert await _ask(port, b"x" * 100_000) == b""
        assert (await _ask(port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    finally:
        server.close()
