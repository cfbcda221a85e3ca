"""Every bound of the wire, by name; the unit is the last word."""

# ---- etcd (hams_wire.coordination) ----

etcd_call_s = 2.0
"""Budget of one call to etcd. Within it, what was definitely not applied is tried again on the next member."""

etcd_attempt_s = 0.5
"""With several members, a read that one of them has not answered after this long goes to the next."""

etcd_connect_s = 0.5
"""A member that has not accepted a connection after this long is passed over."""

etcd_pause_s = 0.05
"""Pause between two rounds over all members, none of which could serve."""

etcd_pause_max_s = 1.0
"""Watches and keepalives pause between attempts: from `etcd_pause_s`, doubled each time, with jitter, to this."""

etcd_probe_s = 1.0
"""A stream that has been silent for this long is asked for a sign of life."""

etcd_probe_answer_s = 0.5
"""Without that sign after this long the member counts as sick, and the next one takes its place."""

etcd_message_bytes_max = 16 * 1024 * 1024
"""Largest answer accepted from etcd."""

etcd_transaction_items_max = 128
"""Comparisons, and operations, in one transaction: etcd's own default."""

etcd_token_idle_s = 120.0
"""An authentication token that has not been used for this long is replaced before a write: etcd forgets idle ones after 300 s."""

watch_events_max = 1024
"""Events of one watch read ahead of its consumer; beyond that etcd keeps them."""

registration_ttl_min_s = 1
"""Shortest lease asked for; etcd grants its own minimum if that is longer (two seconds with its default election timeout)."""

registration_renewals_per_ttl = 3
"""A lease is renewed this often within its time to live."""
