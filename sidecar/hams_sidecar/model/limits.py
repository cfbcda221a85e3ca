"""Bounds that several modules of the model link share; the unit is the last word."""

FRAME_BYTES_MAX = 16 << 20
"""A control frame from the model process or to it; tensors never travel in frames."""

MESSAGE_CHARS_MAX = 2000
"""An error message that a model sends."""
