"""Bounds that several modules of `hams_operator.cli` share; the unit is the last word."""

problems_shown_max = 10
"""Wrong replies and kinds of failures shown."""
