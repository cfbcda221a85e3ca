"""Every bound of the model process, by name; units last."""

FRAME_BYTES_MAX = 16 << 20
"""A control frame; tensors never travel in frames."""

MESSAGE_CHARS_MAX = 2000
"""An error message that leaves the model process."""

CONNECT_WAIT_S = 120.0
"""How long the process waits for its proxy's socket to appear."""

CONNECT_RETRY_S = 0.02
"""Between two looks for that socket."""

TREE_DEPTH_MAX = 64
"""Nesting of a `state_dict`."""

WARM_UP_STATE_NBYTES_MAX = 256 << 20
"""A state that is copied, so that a warm-up can be undone; a model with a larger one is not warmed up."""

LAYOUT_DIFFERENCES_MAX = 3
"""Differences named when a state does not fit."""
