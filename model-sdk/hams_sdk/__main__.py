"""`python -m hams_sdk` is `hams-model`."""

from hams_sdk.cli import main

main()
