"""Every bound of the wire, by name; the unit is the last word."""

# ---- etcd (hams_wire.coordination) ----

etcd_call_s = 2.0
"""Budget of one call to etcd. Within it, what was definitely not applied is tried again on the next
member."""

etcd_attempt_s = 0.5
"""With several members, a read that one of them has not answered after this long goes to the next."""

etcd_write_s = 0.25
"""With several members, one that has not answered a write after this long is asked for a sign of life
(`etcd_probe_answer_s`), and again each time that it passes."""

etcd_connect_s = 0.5
"""A member that has not accepted a connection after this long is passed over."""

etcd_pause_s = 0.05
"""Pause between two rounds over all members, none of which could serve."""

etcd_pause_max_s = 1.0
"""Watches and keepalives pause between attempts: from `etcd_pause_s`, doubled each time, with jitter, to
this."""

etcd_probe_s = 1.0
"""A stream that has been silent for this long is asked for a sign of life."""

etcd_probe_answer_s = 0.5
"""Without that sign after this long the member counts as sick, and the next one takes its place."""

etcd_message_bytes_max = 16 * 1024 * 1024
"""Largest answer accepted from etcd."""

etcd_request_bytes_max = 1_572_864
"""Largest write that etcd takes: its own default."""

etcd_transaction_items_max = 128
"""Comparisons, and operations, in one transaction: etcd's own default."""

etcd_token_idle_s = 120.0
"""An authentication token that has not been used for this long is replaced before a write: etcd forgets idle
ones after 300 s."""

watch_events_max = 1024
"""Events of one watch read ahead of its consumer; beyond that etcd keeps them."""

registration_ttl_min_s = 1
"""Shortest lease asked for; etcd grants its own minimum if that is longer (two seconds with its default
election timeout)."""

registration_attempts_max = 8
"""A registration tries this often in a row if other writers of the key, or of what its permit compares, are
faster."""

registration_renewals_per_ttl = 3
"""A lease is renewed this often within its time to live."""

# ---- starting ----

spec_wait_s = 60.0
"""A process waits this long for etcd to answer and to hold its graph: on Kubernetes all start together."""

spec_pause_s = 0.2
"""Between two looks for it."""

# ---- the kubelet's questions (hams_wire.probes) ----

probe_answer_s = 2.0
"""A question takes no longer than this, or its connection is closed."""

probe_line_bytes_max = 4096
"""Longest line of a question."""

# ---- peers (hams_wire.peers) ----

chunk_bytes_max = 2 * 1024 * 1024
"""Payload bytes in one frame: what an urgent message may have to wait for."""

chunk_bytes = 512 * 1024
"""Payload bytes we put into one frame."""

staging_bytes = 64 * 1024
"""Read buffer of one connection; what of a payload lands in it is copied once."""

let_go_bytes = 128 * 1024
"""Pieces of payload above this are reported to their owner when they have left."""

join_bytes_max = 16 * 1024
"""Pieces up to this size are joined before they are handed to the transport: cheaper than one more piece of a
gathering write."""

metadata_bytes_max = 32 * 1024 * 1024
"""Metadata of one message. A copy of a state, or of a log, names every open request with its parameters: how
large these may be follows from this (`hams_wire.room`)."""

unit_metadata_bytes = 2048
"""What one token of one request takes of it, but for its parameters: ids, dependencies, a client's trace."""

hello_bytes_max = 4 * 1024
"""Metadata of a greeting, all that a stranger may send."""

answer_bytes_max = hello_bytes_max + 16
"""Read buffer on the way back of a connection, where only answers to the greeting travel."""

payload_bytes_max = 16 * 1024 * 1024 * 1024
"""Payload bytes of one message."""

payloads_per_message_max = 65_536
"""Payloads in one message."""

tensors_per_payload_max = 65_536
"""Tensor descriptors in one payload; a captured state has one per parameter."""

tensor_rank_max = 64
"""Dimensions of one tensor."""

dimension_max = (1 << 63) - 1
"""Largest dimension of a tensor: what every reader of a shape can hold."""

defect_chars_max = 500
"""Characters kept of what is wrong with a payload: it becomes the text of an error reply."""

heap_room_mapped_bytes_min = 256 * 1024
"""Room for a payload of this size is mapped, so that a claim takes memory only as its bytes arrive."""

streams_open_max = 8
"""Messages of one connection whose payload is still arriving: one per lane, and room for lanes to come."""

lane_bytes_max = 256 * 1024 * 1024
"""A message that would raise a lane above this is dropped, as if the connection had lost it; one message
always fits."""

lane_messages_max = 131_072
"""Messages waiting in one lane, whatever their size."""

urgent_turn_bytes_max = 1024 * 1024
"""Urgent bytes written before a chunk of payload gets its turn, so that acknowledgements alone cannot starve
records."""

dedupe_bytes_min = 64 * 1024
"""A message with this much payload that still waits is not queued a second time."""

unsent_bytes_max = 256 * 1024
"""Bytes the kernel may hold unsent (TCP_NOTSENT_LOWAT): what is urgent overtakes everything behind them."""

connections_max = 1024
"""Incoming connections of one instance."""

handshakes_max = 128
"""TLS connections that have not shown a certificate yet; others wait with the kernel until one of these is
through, has run out of time or gives way."""

handshake_unhurried_s = 0.25
"""A TLS handshake that has taken so long gives way to the next connection where there is no place left."""

accept_again_s = 0.2
"""Pause after a connection that could not be accepted, as where there are no file descriptors left."""

addresses_known_max = 4096
"""Addresses of members remembered, former ones included."""

peers_max = 4096
"""Instances that are members or hold a connection here."""

handshake_s = 2.0
"""A connection that has not greeted or been greeted by then is closed."""

connect_s = 1.0
"""An attempt to connect to a peer ends after this long."""

reconnect_s = 0.02
"""Pause before a broken connection is tried again; doubled each time, with jitter, to `reconnect_max_s`."""

reconnect_eager_s = 0.002
"""The same, to a peer whose end something waits to know: its socket may still be closing while the kernel
ends its process."""

reconnect_refused_s = 0.25
"""The same, where no process listens any more: one that comes back there connects to us first."""

reconnect_offending_max_s = 5.0
"""The same, to a peer that has closed connections for a frame that is not allowed: what it refused may come
again. It is forgiven after a connection that stood for longer than this."""

offence_said_s = 60.0
"""A peer whose frames are refused, or that refuses ours, is named in the log again after this long."""

offenders_max = 256
"""Peers of which it is remembered when they were last named."""

payload_silence_s = 5.0
"""A connection that has announced a payload and sends none of it for this long is closed: room for it is
taken, and nobody else has it."""

steady_s = 0.1
"""A connection that stood for less than this is flapping: it is not tried again at once."""

reconnect_max_s = 1.0
"""Longest pause between two attempts to connect."""

keepalive_s = 1
"""Seconds without traffic before the kernel probes a connection, and between its probes."""

keepalive_probes_max = 3
"""Unanswered kernel probes after which a connection is broken."""

user_timeout_s = 5
"""Sent bytes without acknowledgement for this long break a connection."""

# ---- visits (hams_wire.peers.visits) ----

visits_max = 256
"""Visitors at one instance at a time."""

visit_head_bytes_max = 4 * 1024 * 1024
"""What a visitor, or its host, says besides payload, in one message."""

visit_piece_bytes = 1024 * 1024
"""Payload is read and written in pieces of this size."""

visit_silence_s = 5.0
"""A visit on which nothing moves for this long while something is due is over."""

# ---- suspicion (hams_wire.failure_detector) ----

suspicion_deviations = 5.6
"""A silence this many deviations above the mean gap has phi 8, a probability of 1e-8: the threshold that Akka
and Cassandra begin with."""

suspicion_deviation_share = 0.1
"""Least deviation, as a share of `suspect_after_s`: a very regular peer is not suspected of a moment's
delay."""

suspicion_gaps = 200
"""Gaps of one peer that are kept: some ten seconds of heartbeats, and as many as Akka keeps."""

suspicion_gap_max_s = 2.0
"""A longer gap teaches nothing: its peer was stopped or cut off, not slow."""

suspicion_calm_s = 30.0
"""What a wrong suspicion has added to the patience with a peer is halved after this long without another
one."""

suspicion_stretch_max = 8.0
"""The silence allowed is never above this multiple of `suspect_after_s`: a flapping link must not teach
patience without end."""

network_silence_s = 0.5
"""A connection to a silent peer is broken off if the peer's kernel has acknowledged nothing for this long:
the network between the two is cut. A process that is only slow has a kernel that answers."""

# ---- nodes (hams_wire.node) ----

member_lease_s = 2
"""Lease of a registration: the safety net behind broken connections and heartbeats."""

heartbeats_per_suspicion = 3
"""Heartbeats within the time after which silence is suspicious."""

break_report_after_s = 0.1
"""A broken connection is reported to the managers after this long, unless they have acted by then or it
stands again."""

heartbeat_min_s = 0.01
"""Heartbeats are at least this far apart."""

close_flush_s = 0.2
"""What is queued may take this long to leave when an instance ends in order."""

timeliness_report_s = 5.0
"""An instance writes into etcd this often how it serves by deadlines, if that has changed: what status shows
is at most so old."""

timeliness_window_s = 60.0
"""What status shows of deadlines is about the requests of so long."""

policy_failure_chars_max = 500
"""Characters of what a scheduling policy did wrong that are reported: an exception may quote a request."""

late_log_s = 10.0
"""An instance that gets too little CPU says so at most this often."""

timer_late_s = 0.02
"""A timer that fires later than this yields once to what has arrived."""

timer_again_s = 0.001
"""How long it yields."""

content_page_bytes = 4096
content_pages_max = 256
"""Where states are replayed, a value is named by its bytes: by so many pages of each tensor at most, 1 MiB,
which takes a millisecond."""
