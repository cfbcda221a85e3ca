"""The history checker: what a recorded run proves about the invariants of the protocol.

`check(lines)` judges a history in memory, `check_directory(path)` one in files; both give a `Report`.
`main(args)` is the command.
"""

from hams_sim.history.checker import check, check_directory
from hams_sim.history.command import main, run
from hams_sim.history.report import Problem, Report, Skip, Violation

__all__ = ["Problem", "Report", "Skip", "Violation", "check", "check_directory", "main", "run"]
