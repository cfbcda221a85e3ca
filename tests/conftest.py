"""What holds for every test of the repository."""

import os
import sys

from hypothesis import settings

import hams_compiled

hams_compiled.deactivate()  # tests look inside; the processes that they start run what everybody runs

import hams_protocol.frozen  # noqa: E402

# Frozen types pay for their freeze only here: the core must not have been imported before the switch is on (see hams_protocol/frozen.py).
_early = sorted(name for name in sys.modules if name.startswith("hams_protocol.") and name != "hams_protocol.frozen")
if _early:
    raise RuntimeError(f"imported before frozen types were enforced: {', '.join(_early)}; no plugin or conftest above tests/ may import the core")
hams_protocol.frozen.ENFORCE = True

# A submission is judged by the same examples each time; everybody else searches further.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
