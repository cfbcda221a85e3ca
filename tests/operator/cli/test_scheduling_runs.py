"""Scheduling as users see it in a local run: load with a deadline, who was on time, what is learnt, and that
it outlives a failover and a run."""

import pytest

pytestmark = [pytest.mark.process, pytest.mark.etcd, pytest.mark.timeout(240)]


def learns(hams, name: str):
    """A graph whose state is scheduled by `Distribution`."""
    file = hams.graph(name)
    text = file.read_text()
    stateful = "    stateful: {backups: 1}\n"
    assert stateful in text
    file.write_text(text.replace(stateful, stateful + "    batch: {maxRows: 8, policy: Distribution}\n"))
    return file


def profiles(hams) -> dict[str, dict]:
    """What instances of `count` say that they have learnt, by their role."""
    return {item["role"]: item for item in hams.json("profile", "count")}


def learnt_by(hams, role: str) -> int:
    """The samples of the instance with that role; 0 while there is none."""
    return profiles(hams).get(role, {"learnt": 0})["learnt"]


def counted(hams) -> set[str | None]:
    """The operators (None: frontends) of which it is known who was on time."""
    return {item["operator"] for item in hams.json("status")["instances"] if item["onTime"]}


@pytest.mark.by_hand
def test_what_is_learnt_is_shown_outlives_a_failover_and_a_run_and_is_forgotten_when_asked(hams):
    file = learns(hams, "learns")
    hams.ok("up", file, "--detach")
    hams.until(lambda: hams.settled("learns"), "a status of everybody")
    load = hams.json("load", file, "--rate", 60, "--duration", "5s", "--deadline-ms", 20_000)
    assert load["deadline"] == {"ms": 20_000.0, "onTime": 300, "late": 0, "refused": 0, "finishRate": 1.0}

    hams.until(lambda: learnt_by(hams, "backup") > 0, "the backup has read what the primary has learnt")
    assert profiles(hams)["primary"]["classes"]
    hams.until(lambda: {"count", None} <= counted(hams), "how many were on time")
    on_time = [item["onTime"] for item in hams.json("status")["instances"] if item["onTime"]]
    assert {item["share"] for item in on_time} == {1.0}

    hams.ok("kill", "count")
    hams.until(lambda: hams.settled("learns"), "redundant again after a kill")
    assert learnt_by(hams, "primary") > 0, "the successor knows nothing"
    hams.ok("down")

    hams.ok("up", file, "--detach")
    hams.until(lambda: hams.settled("learns"), "a status of everybody")
    assert learnt_by(hams, "primary") > 0, "the next run knows nothing"
    times = hams.home / "times.json"
    assert hams.json("profile", "--save", times) == {"saved": ["count"]}
    assert hams.json("profile", "--clear") == {"forgets": ["count"]}
    hams.until(lambda: {item["learnt"] for item in profiles(hams).values()} == {0}, "everybody has forgotten")
    assert hams.json("profile", "--load", times) == {"loaded": ["count"]}
    hams.until(lambda: all(item["learnt"] for item in profiles(hams).values()), "everybody knows the file")
    times.write_text("{}")
    refused = hams("profile", "--load", times)
    assert (refused.returncode, refused.stderr.startswith(f"hams: {times}: expected what ")) == (1, True)
    hams.ok("profile", "--clear")
    hams.until(lambda: {item["learnt"] for item in profiles(hams).values()} == {0}, "everybody has forgotten")
    refused = hams("profile", "double")
    assert refused.returncode == 1
    assert "nothing is learnt of double: its batch.policy is Fifo" in refused.stderr
    hams.ok("down")
    profiles_folder = hams.home / "learns" / "profiles"
    assert list(profiles_folder.iterdir()) == []

    (measured,) = hams.json("profile", "--run", file, "--samples", 20)
    assert (measured["operator"], measured["classes"][0]["samples"] > 0) == ("count", True)
    assert [path.name for path in profiles_folder.iterdir()] == ["count.profile"], "the next run knows it"
