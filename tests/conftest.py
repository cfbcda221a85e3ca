"""What holds for every test of the repository."""

import os
import sys

from hypothesis import HealthCheck, settings

import hams_compiled

CORE = os.environ.get("HAMS_TEST_CORE")
"""Another form of the core to test: the folder that holds it (tests/test_compiled.py)."""

if CORE is None:
    hams_compiled.deactivate()  # tests look inside; the processes that they start run what everybody runs
else:
    sys.path.insert(0, CORE)

import hams_protocol.frozen  # noqa: E402

if CORE is not None and not hams_protocol.frozen.__file__.startswith(CORE):
    raise RuntimeError(f"the core is to be that of {CORE}, found {hams_protocol.frozen.__file__}")

# Frozen types pay for their freeze only here: the core must not have been imported before the switch is on
# (see hams_protocol/frozen.py).
_early = sorted(
    name for name in sys.modules if name.startswith("hams_protocol.") and name != "hams_protocol.frozen"
)
if _early:
    raise RuntimeError(
        f"imported before frozen types were enforced: {', '.join(_early)}; no plugin or conftest above "
        "tests/ may import the core"
    )
hams_protocol.frozen.ENFORCE = True

# A submission is judged by the same examples each time; everybody else searches further. Nothing fails for
# being slow: the machine may be busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("untimed"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "untimed")
