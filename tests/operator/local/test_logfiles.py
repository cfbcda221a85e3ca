"""Logs of processes that write without end: what is read, and what is kept, is bounded."""

from hams_operator.local.logfiles import cut, last_lines, new_lines, shortened


def test_the_last_lines_are_read_out_of_the_end_of_a_file(tmp_path):
    log = tmp_path / "model.log"
    log.write_text("first\nsecond\nthird\n")
    assert last_lines(log, 2, 1000) == ["second", "third"]
    assert last_lines(log, 2, 8) == ["d", "third"]
    assert last_lines(log, 0, 1000) == []
    log.write_bytes(b"")
    assert last_lines(log, 2, 1000) == []


def test_no_more_is_read_of_a_line_without_end(tmp_path):
    log = tmp_path / "model.log"
    log.write_bytes(b"x" * 5000 + b"\xff")
    assert last_lines(log, 20, 3) == ["xx\N{REPLACEMENT CHARACTER}"]


def test_who_follows_a_log_is_told_whole_lines_and_of_too_many_the_end(tmp_path):
    log = tmp_path / "model.log"
    log.write_bytes(b"one\ntwo\nthr")
    assert new_lines(log, 4, 11, 100) == (8, ["two"])
    assert new_lines(log, 8, 11, 100) == (8, [])
    assert new_lines(log, 0, 11, 6) == (8, ["wo"])


def test_who_follows_a_line_without_end_is_not_told_it_again_and_again(tmp_path):
    log = tmp_path / "model.log"
    log.write_bytes(b"x" * 50)
    assert new_lines(log, 0, 50, 20) == (50, ["x" * 20])
    assert new_lines(log, 40, 50, 20) == (40, [])


def test_a_cut_log_is_empty_for_who_writes_on_and_its_end_is_kept(tmp_path):
    log = tmp_path / "model.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old" * 1000 + b"the end")
        cut(log, 7)
        writer.write(b"goes on")
    assert log.read_bytes() == b"goes on"
    assert (tmp_path / "model.log.1").read_bytes() == b"the end"


def test_a_short_line_is_left_as_it_is():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc..."
