"""Bounds that several modules of the data plane share; the unit is the last word."""

arena_bytes_max = 8 << 30
"""Shared memory of one proxy: tensors, captured and received states. The file is sparse: only what is used
takes memory."""

frontend_arena_bytes_min = 1 << 30
"""Memory for payloads of one frontend: enough for the defaults of a graph. It is sparse as well."""

frontend_arena_reserve_parts = 4
"""One part of so many of a frontend's memory, kept replies aside, is for what peers send (entries of logs,
replies): clients cannot take it."""

sink_output_bytes_max = frontend_arena_bytes_min // frontend_arena_reserve_parts
"""Outputs of one unit that frontends get: what one has no room for would be sent to it again for ever, so it
is the unit's error at once."""

drain_s_max = 10.0
"""How long a proxy that was asked to end, or a frontend that serves no client any more, may take to hand
over; `--drain-s` says otherwise (Kubernetes: within the pod's grace period). More than the core's
`leave_wait_s` and the copy of a log: an instance that leaves is let go by then, unless all end together and
none is left to take over."""

return_pause_s = 0.5
"""An instance that comes back with its state tries again to reach etcd after this long."""

unmap_bytes_min = 64 << 20
"""States from this size on are not kept mapped in the proxy: a process that is killed closes its sockets only
after unmapping its memory, 12 ms for 100 MB, and that is when others notice."""

chunk_bytes = 64 << 10
"""What of a state is compared, shared between versions and sent as one: the last chunk of an image may be
smaller."""

chunks_max = 1 << 20
"""Chunks of one state; a larger one travels whole."""

compared_bytes_min = 16 << 10
"""A state that was smaller in the capture before is copied whole, whether it changed or not: to compare it
costs more."""

descriptors_max = 256
"""Descriptions of payloads (names, datatypes, shapes, places of their tensors) kept to be shared."""

visit_pause_s = 0.1
"""A visit that failed, or a question that nobody could answer yet, is tried again after this long."""
