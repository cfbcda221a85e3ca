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

HEADER_STEP_BYTES = 1024
"""The header of a state image is padded to a multiple of this, so that a number in it which becomes longer
moves no leaf: leaves that move count as changed."""

KEY_BYTES_MAX = 1024
"""A key of a `Keyed` mapping; each has that much room, of which 64 bytes are the default."""

KEYED_ROW_BYTES_MAX = 1 << 20
"""A row of a `Keyed` mapping."""

KEYED_ROWS_MAX = 1 << 26
"""Keys of a `Keyed` mapping."""

SLAB_BYTES = 1 << 20
"""A `Keyed` mapping grows by slabs of about so many bytes."""

CONSTANT_AGAIN = 256
"""Leaves that were declared constant are compared in every one of so many captures."""

DENSE_CAPTURES = 8
"""A leaf all of whose chunks changed in so many captures running is copied uncompared."""

DENSE_AGAIN = 64
"""Such a leaf is compared again in every one of so many captures."""

DENSE_CHUNKS_MIN = 4
"""Smaller leaves are always compared: their chunks are shared with others."""

BLOCK_CHUNKS_MAX = 16
"""Chunks that are compared in one call: one that differs is looked for only where the whole differs."""

DEVICE_SPARE = 0.2
"""Of a device's memory: so much stays free beside what a capture keeps there to compare with."""

DEVICE_ROOM_SHARE = 8
"""What is kept there has room for one part in so many more, as states grow."""
