"""One page of metrics for a local run: every process's series, told apart by labels."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hams_operator.local.metrics import MetricsPage, Source, is_own, merged
from hams_wire.exposition import Sample
from hams_wire.probes import answer_probes

FRONTEND = Source("", "frontend-1-aa", "frontend", "/nowhere")
OTHER = Source("", "frontend-2-bb", "frontend", "/nowhere")
PROXY = Source("mean", "mean-3-cc", "proxy", "/nowhere")

HISTOGRAM = """# HELP hams_endpoint_seconds Time of a request.
# TYPE hams_endpoint_seconds histogram
hams_endpoint_seconds_bucket{code="200",le="0.1"} 3.0
hams_endpoint_seconds_bucket{code="200",le="+Inf"} 4.0
hams_endpoint_seconds_count{code="200"} 4.0
hams_endpoint_seconds_sum{code="200"} 1.5
# HELP up_since When.
# TYPE up_since gauge
up_since 17
"""


def test_series_of_one_name_stand_together_with_what_is_said_of_them_once():
    page = merged({FRONTEND: HISTOGRAM, OTHER: HISTOGRAM, PROXY: None})
    assert page.count("# TYPE hams_endpoint_seconds histogram") == 1
    families = {item.name: item for item in text_string_to_metric_families(page)}
    counts = [item for item in families["hams_endpoint_seconds"].samples if item.name.endswith("_count")]
    assert [(item.labels["instance"], item.labels["code"], item.value) for item in counts] == [
        ("frontend-1-aa", "200", 4.0),
        ("frontend-2-bb", "200", 4.0),
    ]
    up = {item.labels["instance"]: item.value for item in families["hams_up"].samples}
    assert up == {"frontend-1-aa": 1.0, "frontend-2-bb": 1.0, "mean-3-cc": 0.0}
    assert len(families["up_since"].samples) == 2


async def test_the_page_holds_what_processes_say_at_their_sockets(tmp_path: Path):
    there, gone = tmp_path / "a.probes", tmp_path / "b.probes"
    counted = Sample("hams_batches_total", "Batches.", 7, {"lane": "x"})
    probes = await answer_probes(there, lambda: None, lambda: (counted,))
    page = MetricsPage(
        lambda: [Source("mean", "a", "proxy", str(there)), Source("mean", "b", "proxy", str(gone))]
    )
    await page.open("127.0.0.1", 0)

    def ask(path: str) -> bytes:
        with urllib.request.urlopen(page.url.removesuffix("/metrics") + path, timeout=30) as answer:
            return answer.read()

    text = (await asyncio.to_thread(ask, "/metrics")).decode()
    assert 'hams_batches_total{operator="mean",instance="a",process="proxy",lane="x"} 7' in text
    assert 'hams_up{operator="mean",instance="b",process="proxy"} 0' in text
    await page.close()
    probes.close()


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ([("host", "127.0.0.1:9090")], True),
        ([("host", "localhost:9090"), ("origin", "http://localhost:3000")], True),
        ([("host", "[::1]:9090")], True),
        ([], True),
        ([("host", "127.0.0.1:9090"), ("origin", "https://example.org")], False),
        ([("host", "127.0.0.1:9090"), ("origin", "null")], False),
        ([("host", "rebound.example.org:9090")], False),
        ([("host", "localhost.example.org")], False),
        ([("host", "[::1")], False),
    ],
    ids=repr,
)
def test_a_request_is_of_this_machine_or_of_a_page_from_elsewhere(fields: list[tuple[str, str]], own: bool):
    assert is_own(fields) is own


async def test_a_page_from_elsewhere_is_shown_no_metrics():
    page = MetricsPage(list)
    await page.open("127.0.0.1", 0)
    foreign = urllib.request.Request(page.url, headers={"Origin": "https://example.org"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        await asyncio.to_thread(urllib.request.urlopen, foreign)
    await page.close()
