"""Bounds that several modules of `hams_wire` share, or the packages on top of it; the unit is the last word.

A bound of one module stands in that module.
"""

# ---- etcd (hams_wire.coordination) ----

etcd_call_s = 2.0
"""Budget of one call to etcd. Within it, what was definitely not applied is tried again on the next
member."""

etcd_connect_s = 0.5
"""A member that has not accepted a connection after this long is passed over."""

etcd_pause_max_s = 1.0
"""Watches and keepalives pause between attempts: from `etcd_pause_s`, doubled each time, with jitter, to
this."""

etcd_probe_answer_s = 0.5
"""A member that was asked for a sign of life and has given none after this long counts as sick: the next one
takes its place."""

etcd_transaction_items_max = 128
"""Comparisons, and operations, in one transaction: etcd's own default."""

# ---- starting ----

spec_wait_s = 60.0
"""A process waits this long for etcd to answer and to hold its graph: on Kubernetes all start together."""

# ---- peers (hams_wire.peers) ----

chunk_bytes = 512 * 1024
"""Payload bytes we put into one frame."""

staging_bytes = 64 * 1024
"""Read buffer of one connection; what of a payload lands in it is copied once."""

metadata_bytes_max = 32 * 1024 * 1024
"""Metadata of one message. A copy of a state, or of a log, names every open request with its parameters: how
large these may be follows from this (`hams_wire.room`)."""

hello_bytes_max = 4 * 1024
"""Metadata of a greeting, all that a stranger may send."""

payload_bytes_max = 16 * 1024 * 1024 * 1024
"""Payload bytes of one message."""

dimension_max = (1 << 63) - 1
"""Largest dimension of a tensor: what every reader of a shape can hold."""

connections_max = 1024
"""Incoming connections of one instance."""

handshake_s = 2.0
"""A connection that has not greeted or been greeted by then is closed."""

connect_s = 1.0
"""An attempt to connect to a peer ends after this long."""

# ---- nodes (hams_wire.node, hams_wire.shell) ----

member_lease_s = 2
"""Lease of a registration: the safety net behind broken connections and heartbeats."""

timeliness_window_s = 60.0
"""What status shows of deadlines is about the requests of so long."""

timer_late_s = 0.02
"""A timer that fires later than this yields once to what has arrived."""

timer_again_s = 0.001
"""How long it yields."""
