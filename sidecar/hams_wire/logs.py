"""How a process writes its log: for a person at a terminal, or for what collects the logs of a cluster, where
a line needs its date and zone."""

import logging
import sys
import time

import msgspec

FORMATS = ("short", "text", "json")
"""`short`: the time of day. `text`: date and time, UTC, RFC 3339. `json`: one object a line."""

VARIABLE = "HAMS_LOG_FORMAT"


def formatter(form: str) -> logging.Formatter:
    """Raises ValueError for what is no format."""
    if form not in FORMATS:
        raise ValueError(f"{VARIABLE}: expected one of {', '.join(FORMATS)}, got {form!r}")
    if form == "json":
        return _Json()
    if form == "short":
        return logging.Formatter(
            "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"
        )
    text = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    text.converter = time.gmtime
    return text


class _Json(logging.Formatter):
    """`{"time": ..., "level": ..., "logger": ..., "message": ...}`, and `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(level: str, form: str) -> None:
    """All of a process's log to its standard error. Raises ValueError for what is no format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])
