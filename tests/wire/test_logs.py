"""Lines of a log have a date and a zone where something collects them, and stay one line each."""

import json
import logging
import sys

import pytest

from hams_wire.logs import formatter


def record(message: str, exc_info: object = None) -> logging.LogRecord:
    result = logging.LogRecord(
        "hams.test",
        logging.WARNING,
        "file",
        1,
        message,
        (),
        exc_info,  # type: ignore[arg-type]
    )
    result.created, result.msecs = 1767225600.25, 250.0
    return result


def test_text_has_date_time_and_zone() -> None:
    assert formatter("text").format(record("gone")) == "2026-01-01T00:00:00.250Z WARNING hams.test: gone"


def test_json_is_one_object_a_line_whatever_the_message_holds() -> None:
    try:
        raise OSError("no file")
    except OSError:
        line = formatter("json").format(record('two\nlines "quoted"', sys.exc_info()))
    assert "\n" not in line
    data = json.loads(line)
    assert "OSError: no file" in data.pop("exception")
    assert data == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "hams.test",
        "message": 'two\nlines "quoted"',
    }


def test_what_is_no_format_is_refused() -> None:
    with pytest.raises(ValueError, match="HAMS_LOG_FORMAT: expected one of short, text, json, got 'xml'"):
        formatter("xml")
