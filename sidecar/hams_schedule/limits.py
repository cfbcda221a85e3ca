"""Every bound of scheduling, by name; the unit is the last word."""

grid_cells = 128
"""Cells of a histogram: logarithmic, so that a cell is a few percent wide wherever the times are."""

classes_max = 32
"""Classes with a histogram of their own; further ones share the class of everything else."""

apps_max = 16
"""Application ids that are learnt; the rest is one class."""

app_id_characters_max = 64
"""A longer application id belongs to the rest: it is not stored, not even cut."""

app_candidates_max = 64
"""Application ids that are counted as candidates for a place among `apps_max`."""

buckets_max = 8
"""Feature buckets of one application."""

features_max = 1_024
"""The newest (feature, time) samples of an application, from which its buckets are cut."""

bucket_samples_min = 30
"""A class with fewer samples borrows from its parent, and no bucket is cut that has fewer."""

bucket_review_samples = 512
"""Buckets and applications are reviewed after this many samples, not oftener."""

bucket_review_samples_first = 64
"""The first review comes after this many, each later one after twice as many as the one before."""

records_max = 1_024
"""The newest batches, from whose times the laws of classes are inferred."""

early_samples_max = 256
"""Stand-alone times that wait for the first grid; nothing is estimated before there are some."""

samples_cold_max = 50
"""With fewer samples over all, times are bounded by the prior, and the policy is `deadline`."""

refresh_samples = 32
"""Tables are rebuilt after this many new samples, or after `refresh_share` of those there are, if that is
more."""

refresh_share = 0.05
"""See `refresh_samples`."""

refresh_samples_max = 1_024
"""Tables are rebuilt after this many new samples at the latest."""

sweep_batches = 16
"""One sweep over `records_max` per this many batches."""

sweeps_at_reset = 20
"""Sweeps over the records when laws start afresh."""

merge_samples_max = 512
"""Weight, in samples, that a class of somebody else's profile has at most."""

profile_bytes_max = 16_384
"""A dumped profile, deflated."""

profile_inflated_bytes_max = 262_144
"""A dumped profile, inflated; what is larger is refused before it is read."""

speed_batches = 20
"""Batches from which is said how fast a machine is beside the one of a stored profile."""

speed_held_max = 40
"""The first batches of whoever takes a stored profile over: with so many it is not asked any more."""

time_max_s = 86_400.0
"""A longer time of a batch is a broken clock: it is ignored and counted."""

time_min_s = 1e-7
"""A stored profile whose shortest time is less is nonsense."""

rows_max = 65_536
"""Rows of a batch whose time is learnt from."""

sizes_max = 64
"""Largest batch for which a size of its own is fitted; larger ones are extrapolated."""

table_rows_max = 2 * sizes_max
"""Rows up to which tables tell what batches take, and simple policies are told. Nothing is known beyond
`sizes_max`, and no trial has more than twice the rows that are known. So they are small for any `maxRows`."""

plan_units_max = 200
"""Units that a plan looks at: the earliest that can still be in time. The rest is judged by the rate rule."""

plan_arrivals_max = 200
"""Expected arrivals that a roll-out sees; beyond that its horizon is shorter."""

laws_cached_max = 1_024
"""Laws of batches by their composition that are remembered between two refreshes of the tables."""

plan_on_spot_share = 0.05
"""Share of a batch's time that a decision with roll-outs may take while the model waits."""

law_steps = 10
"""Steps that the law of a batch costs for each class in it, where it is not known yet."""

unit_steps = 3
"""Steps that a unit that is looked at costs a decision: it is put in order, and passed for each class."""

rollout_step_s = 1e-6
"""What one step of a decision costs, not compiled: one class at one batch of a roll-out, or one unit of a
candidate. Turns a budget of seconds into steps."""

unready_units_max = 64
"""Units that are READY no more and that a policy has dropped, before they are forgotten here too; beside as
many as wait."""

late_share = 0.05
"""Share of busy time that units without a chance get, where they are not shed."""

guard_window_s = 30.0
"""Traffic that the guard replays."""

guard_units_max = 256
"""Units that the guard replays: the newest."""

guard_arrivals_min = 32
"""Arrivals in `guard_window_s` without which a round would say nothing."""

guard_round_s = 5.0
"""Between two rounds of the guard."""

guard_switch_s = 60.0
"""At most one change of policy in this time, but for the first."""

guard_plan_s = 0.002
"""What a policy may plan in a replay beside each batch: as much as in one slice where it serves."""

guard_slice_events = 8
"""Events of a replay in one slice of `plan`."""

cost_steps_max = 4
"""Instants of one request from which on its answer is worth less."""

rest_samples_max = 64
"""The newest times from here to the reply, per application."""

order_turns_max = 64
"""Values in order of arrival that a call looks at, to find those whose first unit is READY no more; all where
nothing else runs."""

order_values_slack = 64
"""Values in order of arrival that are remembered beside two for each unit that waits."""

rest_memory_s = 2.0
"""Without a newer reply for this long, nothing is assumed of the rest of the path."""

unanswered_max = 4_096
"""Requests that have left an operator and whose replies it waits to hear of; the oldest are forgotten."""

unanswered_units_max = 16
"""Units of one such request: the first ones."""
