"""Bounds that several modules of the SDK share; the unit is the last word."""

MESSAGE_CHARS_MAX = 2000
"""An error message that leaves the model process."""
