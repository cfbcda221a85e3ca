"""Metrics of a process."""

import pytest

from hams_sidecar.metrics import Metrics


def test_names_carry_the_project_the_part_and_the_unit() -> None:
    metrics = Metrics("proxy", process=False)
    metrics.counter("batches", "Batches executed.", ("operator",)).labels("learner").inc()
    metrics.latency("batch_duration_seconds", "Time of a batch.").observe(0.003)
    metrics.size("state_bytes", "Size of a state.").observe(5000)
    metrics.gauge("window_versions", "Versions not yet durable.").set(3)
    text = metrics.render()[0].decode()
    assert 'hams_proxy_batches_total{operator="learner"} 1.0' in text
    assert 'hams_proxy_batch_duration_seconds_bucket{le="0.003"} 1.0' in text
    assert 'hams_proxy_state_bytes_bucket{le="4096.0"} 0.0' in text
    assert 'hams_proxy_state_bytes_bucket{le="16384.0"} 1.0' in text
    assert "hams_proxy_window_versions 3.0" in text


def test_what_is_watched_is_read_at_the_scrape() -> None:
    metrics = Metrics("proxy", process=False)
    queues = {"a": 1}
    metrics.watch(
        "queue_units",
        "Units waiting.",
        lambda: [((name,), float(size)) for name, size in queues.items()],
        ("edge",),
    )
    queues["b"] = 2
    text = metrics.render()[0].decode()
    assert 'hams_proxy_queue_units{edge="a"} 1.0' in text
    assert 'hams_proxy_queue_units{edge="b"} 2.0' in text


def test_a_name_is_made_once() -> None:
    metrics = Metrics("proxy", process=False)
    metrics.counter("batches", "Batches executed.")
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.counter("batches", "Batches executed.")
    Metrics("proxy", process=False).counter("batches", "Another registry is another process.")


def test_a_process_shows_itself_and_openmetrics_is_offered() -> None:
    metrics = Metrics("proxy")
    assert b"process_resident_memory_bytes" in metrics.render()[0]
    body, content_type = metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=abc",
        "application/openmetrics-text; version=1.0.x, */*",
        "application/openmetrics-text; version=" + "9" * 5000,
        "text/plain; version=x",
        "text/plain; version=1.0.x; escaping=values",
    ],
)
def test_whoever_asks_for_a_version_that_is_none_gets_text(accept: str) -> None:
    metrics = Metrics("proxy", process=False)
    assert metrics.render(accept) == metrics.render()
