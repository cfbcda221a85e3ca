"""The `hams-model` command: `serve` is the model process, `check` proves a model fit before it is
deployed."""

import os
import sys

from hams_sdk import serve

USAGE = """usage: hams-model serve module:Class --socket PATH [options]
       hams-model check module:Class --graph FILE [--operator NAME] [--data FILE.npz]
Each has --help."""


def main() -> None:
    """Entry point; never returns."""
    command, arguments = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if command == "serve":
        status = serve.main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads of the model must not keep a process whose proxy has gone
    if command == "check":
        from hams_sdk.check import main as check  # noqa: PLC0415 - a serving process needs none of it

        sys.exit(check(arguments))
    print(USAGE, file=sys.stdout if command in ("-h", "--help") else sys.stderr)
    sys.exit(0 if command in ("-h", "--help") else 2)


if __name__ == "__main__":
    main()
