"""Every bound of the core, by name; the unit is the last word."""

window_versions_max = 64
"""Largest `window` a graph may ask for: versions that are executed but not yet durable."""

queue_units_max = 65_536
"""Units that may wait in one operator: a graph whose open requests (`frontend.maxInFlight`) times shards
times lanes are more is refused.

Nothing else bounds a queue. Its shards' admission does: a unit in it belongs to an open request, or to one
that ended with its failed shard.
"""

resend_after_s = 0.25
"""A retained token without acknowledgement, a record, a log entry or a question without answer is sent again
after this long."""

resend_items_max = 256
"""Items sent again per tick: a resend storm never starves fresh work."""

topology_again_s = 0.1
"""A peer is asked for its topology, or told of this one unasked, again after this long. Less than
`resend_after_s`: what cannot be judged comes again, and asks again if the first question was lost."""

ack_delay_s = 0.1
"""Token acknowledgements wait this long for company: most requests complete earlier and need none."""

acks_batch_max = 256
"""Acknowledgements in one message."""

ask_after_s = 0.1
"""An instance that waits for a durable notice asks the primary after this long."""

notices_for_s = 1.0
"""A shard's owner is told of durable versions for this long after a request of the shard has passed; one that
has asked, after it asked."""

askers_max = 256
"""Instances that have asked for notices and are told of more."""

completion_delay_s = 0.03
"""Completion broadcasts wait this long for company: each wakes every instance of the graph, and nobody's
answer waits for them."""

reply_ages_max = 256
"""Replies whose age one completion broadcast tells; scheduling learns from a sample as well as from all."""

completion_sparse_max = 8192
"""Complete requests above the watermark named in one broadcast."""

undecided_messages_max = 4096
"""Messages held because this instance has not learnt yet by what to judge them (`Undecided`); beyond it the
oldest are dropped, and sent again."""

undecided_bytes_max = 256 << 20
"""Payload bytes of those messages, states and logs among them; or one message that is larger, but for states,
which are not held then."""

ends_retained_max = 4
"""Ended epochs that a topology lists per replica set though every instance has heard of them: the newest."""

ends_listed_max = 1024
"""Ended epochs that a topology lists per replica set at most; beyond it the oldest goes, even if some
instance has not heard of it."""

ends_known_max = 4096
"""Ended epochs per replica set that an instance remembers, though the topology lists them no more."""

revoked_listed_max = 256
"""Revoked ids a topology lists."""

leave_wait_s = 4.0
"""A backup that is to end is let go without a substitute after this long."""

backup_lag_max_s = 5.0
"""A backup that does not receive for this long leaves the set by its primary's compare-and-swap."""

propose_retry_s = 0.2
"""A proposal whose outcome was unknown or refused is considered again after this long."""

retained_state_bytes_max = 4 << 30
"""States retained by one proxy; above it the window shrinks, to 1 at least."""

attempts_alone_max = 8
"""Upper limit of `recovery.maxAttempts`."""

frozen_max_s = 2.0
"""A backup that is frozen for this long ends the attempt itself, by committing the next generation
unchanged."""

attempt_wait_s = 1.0
"""Requests that are not suspect wait this long at most for the acknowledgement of what was said of one that
is."""

resend_log_entries_max = 256
"""Log entries in one message."""

copy_part_entries_max = 1024
"""Entries in one part of a log copy."""

copy_part_bytes_max = 8 << 20
"""Payload bytes after which a part of a log copy is closed."""

copy_window_bytes_max = 16 << 20
"""Payload bytes of a log copy that are on their way to a joiner, or one part if that is larger: what a
connection has no room for is lost."""

copy_window_parts_max = 4
"""Parts of it that are on their way: what they say beside their payloads counts, too."""

copy_ask_after_s = 1.0
"""A joiner whose copy or admission makes no progress asks again after this long (a broken connection makes it
ask at once)."""

joiner_lag_entries_max = 65_536
"""Log entries kept for a joiner that follows too slowly; beyond it the joiner copies anew."""

keys_expired_max = 65_536
"""Hashes of expired idempotency keys a shard remembers, newest first; an older key is a new one."""

tickets_unkept_max = 16_384
"""Requests without a key whose replies had to go before their clients had them, of a shard: remembered so
that none is executed again."""

waiters_unchecked_max = 8
"""Who waits for one request, from which on those are left out whose clients have gone."""

key_hash_bytes = 8
"""Length of such a hash."""

key_hash_buckets = 4_096
"""Parts into which a shard's hashes are divided, to find one: 16 in each when all are there."""

forwarders_max = 1024
"""Frontend instances of which a shard remembers how far their tickets are settled."""

retry_after_s = 1.0
"""What a client is told with 429."""

completion_repeat_s = 1.0
"""All completions are broadcast again this often: notices may be lost."""

promise_chance_min = 0.05
"""Under `admission: Promise` a request with less chance than this to be in time is refused at once."""

promise_share_min = 0.92
"""So much of the chance that it would have in an empty shard a request has to have left."""

promise_stretch_max = 1.5
"""A time is taken for one behind so many times more requests, not for one behind more than that."""

promise_samples_max = 64
"""Newest answers of an application from which chances are estimated."""

refusals_remembered_max = 4_096
"""Asks of frontends that the owner of a shard has refused, so that nothing was begun; copies of them that
come later are refused, too."""

promise_kinds_max = 32
"""Kinds of requests (application, power of two of the deadline) of which a shard remembers answers: those
answered last."""

promise_try_s = 0.5
"""Between two requests of a kind of which too little is known, where others like it are refused."""

promise_waiting_max = 64
"""Open requests, the oldest ones, whose waits count under `admission: Promise`."""

promise_loss_s = 2.0
"""A promise that is broken so soon after an instance was lost counts apart."""

promise_app_chars_max = 64
"""A longer application id is none."""

promise_samples_min = 8
"""With fewer answers everything is admitted."""

promise_memory_s = 10.0
"""Older answers do not count."""

promise_shed_factor = 1.25
"""A request that was shed would have taken so many times its budget, at least: nobody knows how long."""

requests_waiting_max = 16_384
"""Clients that wait at one frontend; more are told 429."""

hop_budget_min_s = 0.001
"""The deadline's rest handed on with a token is at least this."""

budget_grain_s = 0.0001
"""A budget is not written anew for a difference below this: it is less than what a message takes."""

stream_floor_bytes_s = 50_000_000
"""Slowest stream that still counts as progress: a record is sent again only after its bytes could have
arrived at this rate."""

flight_bytes_max = 192 << 20
"""States on their way to one follower, not acknowledged yet; one always goes. Less than a connection lets
wait (`lane_bytes_max`)."""

tick_min_s = 0.002
"""Ticks of one machine are at least this far apart, whatever its deadline says."""

manager_rank_delay_s = 0.05
"""The manager of rank r waits r times this before it does what the first one should have done."""

probe_timeout_min_s = 0.3
"""A probe or question without answer fails after `recovery.suspectAfter`, but not sooner than this. A refused
connection fails it at once."""

answer_s_max = 0.6
"""An answer that took longer than this teaches no more than one that took this long: its instance was
stopped, not slow."""

patience_half_life_s = 5.0
"""Half of what a manager has learnt of answer times is forgotten after this long."""

patience_stretch_max = 4.0
"""A manager waits at most this many times the least timeout, whatever it has learnt."""

first_roles_wait_s = 2.0
"""How long shards wait for all frontends to register before those that are there share them."""

probe_repeat_s = 0.1
"""A probe that waits for its answer is repeated after this long: it or its answer may have been lost, as a
connection stands in one direction before it stands in the other."""

registration_wait_s = 1.0
"""The silence of an instance that a manager has never seen registered counts no sooner: the topology that
names it may have come from a peer, before its registration came from etcd."""

probe_again_after_s = 0.5
"""A suspect that nobody could stand in for is probed again after this long."""

former_wait_s = 2.0
"""A state whose members are all revoked is not called lost before this long: one of them may come back with
it."""

checkpoint_wait_s = 10.0
"""A lost state begins again without those that have not read their checkpoints, and have been silent, for
this long."""

checkpoint_read_max_s = 300.0
"""Who reads a checkpoint for longer than this, and `checkpoint_wait_s`, is not waited for."""

fences_max = 16
"""Different fences of one generation that a primary keeps in force."""

suspect_again_after_s = 0.5
"""A primary that cannot go on without its managers repeats to them that it is suspect after this long."""

early_acks_max = 64
"""Acknowledgements of an epoch kept by its primary before it has learnt of its role."""

early_asks_max = 64
"""Joiners' questions for a copy kept by a primary that has not learnt yet that they are named, or has no
state yet."""

routes_max = 256
"""Sets of present request tensors whose entry edges a frontend remembers."""

keeper_wait_s = 0.5
"""An instance that was called as a keeper and has not acknowledged its copy after this long, beside the time
on the way, is given up for another."""

keepers_done_max = 256
"""Instances that a primary remembers in an epoch as not to be called as keepers again, beside those that are
registered."""

keeper_sets_max = 16
"""States of other operators that one instance keeps."""

keeper_state_bytes_max = 1 << 30
"""Bytes of states, all their versions together, that one instance keeps for other operators; it answers no
call above it."""

starved_s = 0.02
"""A loop that is later than this shows that its own process was starved of CPU."""

starved_max_s = 0.5
"""Most lateness that a manager allows for."""

starved_allowance = 4.0
"""Answers get this many times the manager's own recent lateness on top."""

starved_decay = 0.9
"""What is left of the remembered lateness after each Tick."""

judge_late_share = 0.5
"""An instance whose loop was late by more than this share of `recovery.suspectAfter` judges nobody by silence
for a while."""

judge_calm_factor = 8.0
"""It judges again once it has been on time for this many times the delay."""

judge_calm_max_s = 3.0
"""It judges again at the latest when it has been on time for this long."""

hung_wait_s = 10.0
"""A lost state begins again by policy after this long, unless its members are known to be dead: a member that
only hangs may wake up and have it."""

silence_max_s = 30.0
"""A silence of this length counts, however late its judge runs: a manager that is always short of CPU still
replaces what is gone."""

doubt_s = 2.0
"""A manager that was cut off with a part of the graph holds nobody's silence against it for this long once it
has read what others did meanwhile: connections are there again within that time."""

probe_again_starved_s = 2.0
"""A manager that may not judge asks a suspect again after this long: questions cost the CPU that everybody
lacks."""

slot_cache_max = 4096
"""Requests whose slot is remembered: somewhat more than are open at once."""

order_slack_items = 64
"""Entries of a queue that name what is gone already, beyond as many as are there, before it is cleared of
them."""

lost_log_stride_requests = 1 << 32
"""A shard whose log was lost numbers its requests from epoch times this on: no id is ever used twice."""

checkpoint_batches = 150
"""Where states are replayed, a state is stored after so many batches unless the graph says otherwise: as the
paper's measurements do."""

stored_of_open_requests = 2
"""Where states are replayed, a request is open until it is stored: a state is stored after one in so many of
the requests that a shard may have open, however few batches they were."""

checkpoint_idle_s = 0.25
"""Where states are replayed, a primary that has run nothing for so long stores its state."""

checkpoint_batches_max = 1000
"""At most after so many: tokens carry how they all came about."""

replayed_checkpoints_max = 4
"""Where states are replayed, at most so many times as many versions are not stored; the next batch waits."""

checkpoint_again_after_s = 1.0
"""Where states are replayed, a state that could not be stored is written again after this time."""
