"""Every bound of the simulator, by name; the unit is the last word. Times are simulated seconds."""

converge_after_s = 25.0
"""After the last fault is healed, everything must be complete and protected within this long (I7)."""

rehearsals_max = 10
"""So many times in a row a joiner may have to warm its model before a graph has converged: a poison kills one primary after another."""

ready_after_s = 5.0
"""A fresh graph whose models load at once is ready after this long."""

settle_s = 0.6
"""A converged graph runs on this long before its states are compared: notices are on their way."""

entries_held_max = 100
"""A machine holds no more entries than this in any of its containers once everything is complete, however many requests there were."""

etcd_writes_per_instance_max = 3
"""Writes with which a graph answers the loss of all its leases, per instance."""

leases_back_s = 3.0
"""All leases that were lost together are back within this long."""

events_max = 400_000
"""Events in one history; more is a livelock."""

same_time_events_max = 20_000
"""Events at one instant; more is a loop without time."""

lease_ttl_s = 2.0
"""Lease of a registered instance."""

etcd_timeout_s = 0.4
"""After this long a proposal without answer is unknown to its shell."""

proposals_max = 1
"""A machine waits for the outcome of a proposal before the next one (I6): its shell would keep what it wanted of an etcd that is away."""

heartbeat_every_s = 0.3
"""Each instance repeats to one random peer what is cheap to repeat."""

suspect_again_s = 0.3
"""A shell that hears nothing from a peer tells the managers again."""

refused_again_s = 0.1
"""A shell that tries to reach a dead peer reports at most this often that nobody listens there."""

shrink_runs_max = 120
"""Histories run to make one failure smaller."""

client_attempts_max = 400
"""Attempts of one client for one request."""

echo_s = 0.5
"""A message that a hostile network repeats comes again within this long."""

turns_share = 0.3
"""Share of the histories in which frontends take several events in one step, as their shell does under load."""

chunk_histories = 2000
"""A long run reports, and notes its progress, after so many histories."""
