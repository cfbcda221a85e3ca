"""Bounds that several modules of the inference endpoint share; the unit is the last word. What a graph may
change comes from its `frontend` section."""

json_slice_bytes = 64 << 10
"""Tensors in JSON are read and written in slices of this size, and the event loop runs in between: at most a
few milliseconds at a time."""

direct_body_bytes_min = 128 << 10
"""If more than this is missing of a body of which a first part has come, the rest is received in place: worth
a change of protocol, saves two copies."""

tensors_spare = 16
"""Tensors of a request beyond those that its graph has: so few are looked at, so that the mistake can be
named; more are refused before they are."""

bytes_slice_elements = 2048
"""BYTES are walked in slices of so many elements, and the event loop runs in between."""

parameters_bytes_max = 16 << 10
"""Names and string values of a request's parameters, together; less where a graph may have so many requests
open that a copy of all would not fit one message (`hams_wire.room`)."""

write_stall_s_max = 20.0
"""A client that takes none of the bytes waiting for it for this long is cut off."""

retry_after_s = 1.0
"""`Retry-After` where the endpoint itself has no room."""

propagation_s = 5.0
"""After SIGTERM readiness is refused, and requests are served on for this long: load balancers need it to
notice."""

drain_s_max = 30.0
"""After `propagation_s` open requests get this long to finish."""
