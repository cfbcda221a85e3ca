"""`hams history check DIR`: the checker as a command. Prints the report; the exit code is the verdict."""

import argparse
import json
import sys
from collections.abc import Sequence

from hams_history.checker import check_directory


def main(args: Sequence[str] | None = None) -> int:
    """Run `check DIR [--output json]`; returns 0 if all invariants hold, 1 if one is violated, 2 if the
    history or the call is not valid."""
    parser = argparse.ArgumentParser(
        prog="hams history", description="Recorded histories: what a graph did, line by line."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser(
        "check", help="check the invariants I1 to I5 and I7 over a recorded history"
    )
    checking.add_argument(
        "directory", metavar="DIR", help="folder of <instance>.jsonl files, or one such file"
    )
    checking.add_argument(
        "--output", choices=("text", "json"), default="text", help="how to print the report"
    )
    try:
        chosen = parser.parse_args(args)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    return run(chosen.directory, chosen.output)


def run(directory: str, output: str = "text") -> int:
    """Check and print; the exit code."""
    try:
        report = check_directory(directory)
    except OSError as error:
        message = f"cannot read a history from {directory}: {error.strerror}"
        if output == "json":
            sys.stdout.write(json.dumps({"ok": False, "exit_code": 2, "error": message}) + "\n")
        else:
            sys.stderr.write(message + "\n")
        return 2
    sys.stdout.write((json.dumps(report.as_json(), indent=2) if output == "json" else report.render()) + "\n")
    return report.exit_code
