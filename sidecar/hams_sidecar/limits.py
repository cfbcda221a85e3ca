"""Bounds of the processes of the data plane; units last."""

arena_bytes_max = 8 << 30
"""Shared memory of one proxy: tensors, captured and received states. The file is sparse: only what is used
takes memory."""

arena_reserve_bytes = 64 << 20
"""Part of it that only the proxy's own work (captures, outputs) may use, so that arriving tokens cannot
starve it."""

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

version_report_s = 60.0
"""A primary writes the newest durable version of its state into etcd this often, if it has risen: what status
shows is at most so old."""

profile_report_s = 10.0
"""What was learnt of an operator's times is written into etcd this often, if it has changed enough."""

profile_news_share = 0.02
profile_news_samples_max = 1024
"""It has if so many of its samples are new, or a class was forgotten."""

return_pause_s = 0.5
"""An instance that comes back with its state tries again to reach etcd after this long."""

propagation_s = 0.2
"""Time a local frontend serves on after readiness is refused; `--propagation-s` says otherwise (a Service on
Kubernetes takes longer)."""

unmap_bytes_min = 64 << 20
"""States from this size on are not kept mapped in the proxy: a process that is killed closes its sockets only
after unmapping its memory, 12 ms for 100 MB, and that is when others notice."""

chunk_bytes = 64 << 10
"""What of a state is compared, shared between versions and sent as one: the last chunk of an image may be
smaller."""

chunks_max = 1 << 20
"""Chunks of one state; a larger one travels whole."""

descriptors_max = 256
"""Descriptions of payloads (names, datatypes, shapes, places of their tensors) kept to be shared."""

in_place_bytes_min = 64 << 10
"""Smaller tensors are copied from a request's body into memory of their own: the body may be as small, and
was not received in place."""

passing_max = 64
"""Requests that one frontend passes on to its successor at a time; further ones wait."""

visit_pause_s = 0.1
"""A visit that failed, or a question that nobody could answer yet, is tried again after this long."""

drained_tries_max = 3
"""A frontend of a deleted graph says so often that no client waits at it, if it does not hear whether that
was written."""

replies_per_page_max = 1000
replies_per_page_bytes = 2 << 20
"""Kept replies in one message, and about how many bytes of them: the words among them fit into the head of a
message (`visit_head_bytes_max`)."""

plan_slice_s = 0.002
"""A scheduling policy works ahead for about so long at a time, while its model runs."""
