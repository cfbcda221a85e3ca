"""Bounds of the model link; units last."""

FRAME_BYTES_MAX = 16 << 20
"""A control frame from the model process or to it; tensors never travel in frames."""

CONNECTIONS_MAX = 8
"""Connections that have not said what they are for; more are closed at once."""

HELLO_WAIT_S = 5.0
"""How long a connection may take to say what it is for."""

PING_INTERVAL_S = 1.0
"""Between two health questions to an idle or busy model."""

PONG_WAIT_S = 10.0
"""A model that has not answered for so long is dead: its health thread could not run all that time."""

RUN_S_MAX = 300.0
"""A run, a capture or a load that takes longer is taken for hung; the time in which the model waits for its
proxy does not count."""

SPACE_SLACK = 1.25
"""Space granted for outputs of variable size: what the last batch took per row, times this."""

SPACE_GUESS_BYTES_MAX = 8 << 20
"""At most this much is granted to a unit by such a guess: one request with a huge row says nothing of the
next one, and a model that needs more asks for it."""

STATE_SLACK_BYTES = 1 << 16
"""Granted beyond the size of the last capture."""

MESSAGE_CHARS_MAX = 2000
"""An error message that a model sends."""

ROOM_WAIT_S = 30.0
"""How long inputs or outputs of a batch wait for room in the arena before the batch fails: back-pressure that
has become a knot."""
