"""Bounds of the history checker."""

findings_per_invariant_max = 50
"""Violations of one invariant that are explained; the others are counted. One fault breaks many lines, and
the first ones tell."""

evidence_lines_max = 12
"""Lines shown with one violation."""
