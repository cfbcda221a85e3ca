"""`python -m hams_operator.controller`."""

import sys

from hams_operator.controller.process import main

if __name__ == "__main__":
    sys.exit(main())
