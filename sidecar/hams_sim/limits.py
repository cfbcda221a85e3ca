"""Every bound of the simulator, by name; the unit is the last word. Times are simulated seconds."""

from hams_protocol import limits as core

converge_after_s = 25.0
"""After the last fault is healed, everything must be complete and protected within this long (I7), whatever
the faults were."""

lease_ttl_s = 2.0
"""Lease of a registered instance."""

etcd_timeout_s = 0.4
"""After this long a proposal without answer is unknown to its shell."""

instance_up_s = 0.5
"""A process that ended has a successor, whose model is loaded, within this long."""

recovers_s = (
    lease_ttl_s
    + core.probe_timeout_min_s * core.patience_stretch_max
    + etcd_timeout_s
    + core.propose_retry_s
    + instance_up_s
)
"""The same for a scene: an instance that died silently is missed when its lease ends, a probe fails, a
proposal may be lost and is made again, and a fresh instance starts. That is less than `backup_lag_max_s`,
after which a timer heals what a lost event should have caused."""

preloads_max = 10
"""So many times in a row a joiner may have to warm its model before a graph has converged: a poison kills one
primary after another."""

ready_after_s = 5.0
"""A fresh graph whose models load at once is ready after this long."""

settle_s = 0.6
"""A converged graph runs on this long before its states are compared: notices are on their way."""

settle_step_s = 0.1
"""Whether a graph has converged is looked at this often."""

joins_s = instance_up_s + etcd_timeout_s + 2 * core.propose_retry_s + core.resend_after_s + settle_s
"""A fresh instance is up, named and in sync within this long, where the death of the one before is known at
once. A joiner that has to ask a second time, `copy_ask_after_s` later, takes longer."""

entries_held_max = 100
"""A machine holds no more entries than this in any of its containers once everything is complete, however
many requests there were."""

etcd_writes_per_instance_max = 3
"""Writes with which a graph answers the loss of all its leases, per instance."""

leases_back_s = 3.0
"""All leases that were lost together are back within this long."""

events_max = 400_000
"""Events in one history; more is a livelock."""

same_time_events_max = 20_000
"""Events at one instant; more is a loop without time."""

proposals_max = 1
"""A machine waits for the outcome of a proposal before the next one (I6): its shell would keep what it wanted
of an etcd that is away."""

mute_worlds_share = 0.6
"""Share of the histories in which heartbeats are mostly lost."""

heard_by_managers_share = 0.2
heard_by_others_share = 0.01
"""There a heartbeat with news arrives so often: managers hear of a topology after a quarter of a second;
others, which get them from many, a little later."""

silence_breaks_s = 5.0
"""A kernel gives up a connection over which nothing passes after this long, as
`hams_wire.peers.connection.user_timeout_s` has it: long after an end that hears nothing has told the
managers."""

refused_again_s = 0.1
"""A shell that tries to reach a dead peer reports at most this often that nobody listens there."""

shrink_runs_max = 120
"""Histories run to make one failure smaller."""

client_budget_s = 30.0
"""A client's deadline."""

client_attempts_max = 400
"""Attempts of one client for one request, where who dies is replaced at once."""

client_again_s = 0.03
"""A client that is told 503 asks again after this long, unless it is told to wait longer."""

hurried_again_s = 0.1
"""The same for a client that waits less than usual each time."""

echo_s = 0.5
"""A message that a hostile network repeats comes again within this long."""

starved_run_s = 0.05
"""A starved process runs for so long, more or less, before it waits for CPU again."""

starved_wait_s = 0.04
"""Least time that it waits; the rest of the distribution is Pareto's."""

starved_tail = 0.8
"""Exponent of that distribution: below 1 its mean has no bound but the next one."""

starved_wait_max_s = 4.0
"""Most time that it waits: longer than a lease."""

turns_share = 0.3
"""Share of the histories in which frontends take several events in one step, as their shell does under
load."""

chunk_histories = 2000
"""A long run reports, and notes its progress, after so many histories."""

poison_recovers_s = 3 * recovers_s
"""The same where requests kill models: `maxAttempts` + 1 owners die of one, one after the other."""

lost_recovers_s = recovers_s + core.hung_wait_s
"""The same where every holder of a state may die without a word: a silent one may hang, and is waited for
before the state begins again."""

losses_said_max = 8
"""A set is called lost at most so often in one history. More, and managers that see it differently overrule
each other."""

registered_known_s = 1.0
"""Every manager that may commit knows of an instance that has been registered for this long, and without a
fault."""

fault_echo_s = 1.5
"""What follows of a fault is over this long after it: connections stand again, resends and leases
included."""

replaced_late_s = 15.0
"""Where replacements come late, an instance that died is replaced after this long: a cluster without room, or
models that load slowly."""

checkpoint_write_s = 0.002
"""A checkpoint, for which nobody waits, is on disk after so long."""

store_s = (0.002, 0.02, 0.2)
"""Where states are replayed, it is after one of these."""

checkpoint_read_s = 0.003
"""A checkpoint is read from disk in so long, unless a scene says otherwise."""

replaced_slowly_s = 3.0
"""And in scenes in which more than one instance is hurt before the first replacement comes."""

replacements_max = 10
"""So many instances of one operator may die one after another, each replaced late, before a graph has
converged; with requests that kill models, so many more as each of their units may take with it. Only while
somebody is to be replaced is there more time to converge."""

etcd_turns_max = 3
"""Compare-and-swaps one after another between a primary's death and its successor's first answer: the
failover, one that a proposal of somebody else overtook, the keeper."""

answered_after_s = (
    core.patience_stretch_max * core.probe_timeout_min_s
    + etcd_turns_max * etcd_timeout_s
    + core.attempt_wait_s
)
"""After one fault no call waits longer than this, however late replacements come: the death is confirmed, the
successor's topology and its keeper are committed, and what was announced of suspects is acknowledged."""

quick_s = 0.0005
"""A stage of a model that takes no more than a moment."""

told_late_s = core.resend_after_s
"""Where nothing is lost but what was on its way from or to somebody who died, no call waits until something
is sent again."""

bridged_s = 1.5
"""Two instances that cannot reach each other break their connection off
(`hams_wire.shell.network_silence_s`); the owner drops its backup after `suspectAfter`; the rest are the
proposal and requests that had to wait in a row."""

hurried_guards_share = 0.5
"""Share of the histories in which policies know their models' times, and their guards are in a hurry."""

guard_round_s = 0.02
guard_switch_s = 0.05
guard_arrivals_min = 3
guard_errors = 0.0
guard_wins = 1
"""The pace of such a guard (`hams_schedule.guard.Pace`): one round, won by one request, is enough."""

taught_samples = 60
taught_batches = 4
taught_rows = (2, 4, 8)
"""What such a policy knows of its model: so many runs alone, and batches of each of these sizes."""

plan_slices = 8
"""Slices of work ahead after one event, at most: a proxy has as many as it has time for."""

plan_slice_s = 0.002
"""See `hams_sidecar.limits`."""
