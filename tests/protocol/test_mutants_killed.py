"""The proof that these transcripts can fail: with a rule left out, the one that tells of it breaks."""

from collections.abc import Callable
from functools import partial

import pytest
import test_backup as backup
import test_batching as batching
import test_begins_again as begins_again
import test_copy_parts as copy_parts
import test_cut_off as cut_off
import test_deadlines as deadlines
import test_differences as differences
import test_early as news
import test_early_replies as early
import test_failover as failover
import test_findings as findings
import test_followers as followers
import test_former as former
import test_gateway as gateway
import test_handoff as handoff
import test_joins as joins
import test_keeper as keeper
import test_keeper_empty as keeper_empty
import test_keeper_ends as keeper_ends
import test_machine as machine
import test_missed_epochs as missed_epochs
import test_modes as modes
import test_out_of_reach as out_of_reach
import test_outbox as outbox
import test_poison as poison
import test_primary as primary
import test_promises as promises
import test_receipts as receipts
import test_recovery as recovery
import test_replay as replay
import test_replayed as replayed
import test_replica as replica
import test_reply_ages as reply_ages
import test_stateless as stateless
import test_stopped_managers as stopped
import test_succession as succession
import test_undecided as undecided
import test_unreadable as unreadable
import test_vertex as vertex
import test_who_is_waited_for as waited

KILLERS: dict[str, Callable[[], None]] = {
    "born-before-it-was-made": differences.test_a_version_knows_which_one_made_its_state,
    "joiner-counts-behind": (
        copy_parts.test_a_joiner_with_a_log_from_which_nothing_follows_holds_nobody_up_and_gets_a_copy
    ),
    "copies-mixed": copy_parts.test_parts_of_two_copies_are_not_mixed,
    "copy-overtakes-topology": (
        keeper.test_a_keeper_that_lags_behind_who_calls_it_forgets_nothing_that_it_has_acknowledged
    ),
    "owner-stays-doomed": (
        recovery.test_who_owns_slots_alone_is_not_revoked_once_what_it_keeps_is_the_only_copy
    ),
    "empty-keeper-holds": (
        keeper_empty.test_a_state_whose_keeper_says_that_it_holds_nothing_is_lost_with_its_primary
    ),
    "unaware-keeper-is-empty": (
        keeper_empty.test_a_keeper_that_does_not_know_yet_that_it_is_named_may_hold_the_state
    ),
    "keeper-takes-late-copy": lambda: (
        keeper_empty.test_a_keeper_without_a_state_says_so_to_managers_and_takes_none_that_comes_late(
            keeper.stateless()
        )
    ),
    "answering-holder-is-given-up": waited.test_a_lost_state_does_not_begin_again_while_its_holder_answers,
    "stopped-manager-gives-up": (
        waited.test_a_manager_that_was_stopped_hears_of_a_checkpoint_before_a_state_begins_from_nothing
    ),
    "rolled-back-is-replaced": (
        findings.test_a_primary_that_has_gone_back_is_not_replaced_by_the_next_backup
    ),
    "stopped-manager-does-not-doubt": (stopped.test_it_hears_who_has_come_back_before_it_calls_a_state_lost),
    "stopped-keeper-ends": (
        waited.test_a_keeper_that_is_to_end_and_was_stopped_hears_that_it_is_named_before_it_ends
    ),
    "begins-again-on-a-copy": begins_again.test_the_model_does_not_go_on_from_what_it_has_taken_over_before,
    "dead-keeper-is-needed": (
        out_of_reach.test_where_two_fetch_from_each_other_and_one_dies_the_state_that_the_other_keeps_goes_on
    ),
    "fetches-for-ever": out_of_reach.test_a_primary_gives_up_on_a_keeper_that_it_never_reached,
    "joiner-ends-unawares": (
        keeper_ends.test_a_joiner_that_may_be_admitted_already_asks_to_be_let_go_and_ends_then
    ),
    "keeper-ends-unasked": keeper.test_who_is_dropped_from_its_own_set_stays_until_it_is_let_go_as_a_keeper,
    "deaf-judge-judges": cut_off.test_a_manager_that_was_cut_off_alone_hears_others_before_it_judges_them,
    "dead-counts-as-unheard": (
        cut_off.test_where_the_larger_machine_dies_slots_move_at_once_though_a_primary_drops_its_backups_first
    ),
    "missed-epochs-unread": (missed_epochs.test_an_entry_that_was_cut_does_not_pass_for_one_of_a_later_epoch),
    "doubt-renewed": cut_off.test_a_doubt_is_not_renewed_for_ever_by_a_link_that_flaps_between_two_others,
    "feedback-outlives-origin": deadlines.test_a_feedback_ends_with_its_origin_whenever_that_is_heard_of,
    "accept-old-epoch": vertex.test_a_deposed_owner_is_refused_and_told_why,
    "act-before-commit": (
        backup.test_a_frozen_backup_takes_no_record_and_applies_nothing_until_a_newer_topology
    ),
    "adopted-under-new-id": (
        stateless.test_a_value_found_goes_to_the_other_successors_under_its_old_id_and_is_not_computed_again
    ),
    "alone-without-deps": primary.test_alone_a_version_is_durable_once_its_deps_on_others_are,
    "apply-before-upstream-durable": backup.test_a_record_is_held_until_its_deps_on_others_are_durable,
    "apply-orphan": backup.test_a_record_with_an_orphan_dep_is_discarded_with_all_that_follow_it,
    "apply-with-gap": backup.test_records_are_applied_in_order_whatever_order_they_come_in,
    "attempt-not-awaited": (
        poison.test_a_suspect_runs_alone_only_after_its_upstream_has_acknowledged_what_was_said
    ),
    "keeper-unaware-of-itself": (
        keeper.test_a_keeper_that_is_the_primary_upstream_applies_what_waits_for_its_own_version
    ),
    "oldest-not-asked-for": (
        primary.test_a_primary_alone_asks_for_what_its_oldest_version_waits_for_though_the_newest_does_not
    ),
    "drained-stays": (
        handoff.test_a_former_primary_that_was_dropped_and_named_again_before_it_heard_of_its_handover_ends
    ),
    "found-unseen": (
        recovery.test_a_lost_state_is_found_once_a_holder_is_registered_and_not_for_want_of_a_suspicion
    ),
    "probed-once": (
        recovery.test_a_probe_is_repeated_before_silence_counts_for_it_or_its_answer_may_have_been_lost
    ),
    "unregistered-judged": (
        recovery.test_who_is_named_before_its_registration_has_come_is_not_judged_by_the_silence_until_then
    ),
    "manager-gives-to-departed": (
        recovery.test_who_has_handed_over_what_it_had_gets_no_slot_of_a_crowded_owner
    ),
    "departed-substitute-counts": (
        recovery.test_who_has_handed_over_is_no_substitute_for_an_owner_whose_model_died
    ),
    "attempt-gives-to-departed": (recovery.test_an_attempt_gives_no_slot_to_who_has_handed_over_what_it_had),
    "starting-is-dead": stateless.test_a_model_that_starts_is_not_dead,
    "lost-probe-counts": (recovery.test_a_probe_is_sent_once_more_when_the_connection_of_the_suspect_is_back),
    "cut-off-judge-judges": recovery.test_a_manager_that_was_cut_off_hears_others_before_it_judges_them,
    "starved-judge-judges": (
        recovery.test_a_manager_that_got_no_cpu_judges_nobody_by_silence_until_it_has_been_on_time_for_a_while
    ),
    "suspect-without-backup": (
        poison.test_a_suspect_of_which_an_instance_died_waits_for_a_backup_in_sync_and_others_are_served
    ),
    "complete-request-taken": vertex.test_a_complete_request_is_refused_for_ever,
    "begins-again-unasked": (recovery.test_a_lost_state_that_a_request_may_have_touched_waits_for_a_person),
    "complete-injected-again": (
        failover.test_what_the_tail_calls_complete_is_neither_injected_again_nor_taken_from_another_execution
    ),
    "logged-before-said": (
        gateway.test_the_first_request_of_a_graph_waits_until_the_topology_says_that_there_is_one
    ),
    "out-of-reach-is-over": (
        gateway.test_who_was_taken_for_gone_and_comes_back_gets_the_reply_that_was_lost_with_its_connection
    ),
    "complete-without-close": findings.test_a_first_whose_loser_becomes_orphan_does_not_run_again,
    "consumed-not-restored": (
        backup.test_a_promoted_backup_loads_its_record_sends_saved_outputs_again_and_announces_first_of_all
    ),
    "copy-speculative": followers.test_a_joiner_copies_the_newest_durable_version_with_what_it_consumed,
    "copy-without-consumed": followers.test_a_joiner_copies_the_newest_durable_version_with_what_it_consumed,
    "dead-model-stays-dead": recovery.test_an_answer_counts_for_the_topology_in_which_it_was_given,
    "durable-version-dropped": (
        backup.test_it_keeps_every_version_that_its_primary_may_be_ahead_by_and_the_durable_one_to_go_back_to
    ),
    "late-replacement-not-awaited": (
        recovery.test_an_instance_that_comes_late_has_its_time_to_tell_of_a_checkpoint
    ),
    "deps-not-transitive": primary.test_dependencies_are_transitive_over_the_state,
    "durable-when-tainted": (
        findings.test_who_has_told_that_its_state_holds_an_orphan_makes_nothing_more_of_it_durable
    ),
    "durable-before-all": primary.test_a_version_is_durable_when_the_whole_ack_set_has_applied_it,
    "durable-before-rollback": (
        findings.test_who_has_told_what_it_can_go_back_to_makes_nothing_more_of_it_durable
    ),
    "early-ask-ignored": (
        followers.test_a_joiner_that_knows_sooner_that_it_is_named_gets_its_copy_as_soon_as_the_primary_knows
    ),
    "ends-dropped-unheard": (
        recovery.test_an_end_goes_once_every_instance_knows_a_topology_that_had_it_and_the_newest_stay
    ),
    "follower-answers": stateless.test_a_followers_answer_is_not_its_sets,
    "frozen-takes-records": (
        backup.test_a_frozen_backup_takes_no_record_and_applies_nothing_until_a_newer_topology
    ),
    "goes-on-after-hand-over": (
        handoff.test_nothing_is_executed_while_a_handover_may_be_committed_though_its_successor_leaves_too
    ),
    "handed-slot-forgotten": (
        stateless.test_who_has_handed_a_slot_over_tells_what_it_had_received_until_the_request_completes
    ),
    "hung-is-dead": recovery.test_a_lost_state_does_not_begin_again_at_once_where_who_has_it_may_only_hang,
    "successor-not-asked": (
        handoff.test_who_has_just_got_a_set_waits_for_its_successor_to_say_whether_it_is_to_end_as_well
    ),
    "hand-over-unflushed": primary.test_a_draining_primary_finishes_its_window_before_it_hands_over,
    "held-outputs-survive-failover": modes.test_what_is_held_goes_with_the_epoch_in_which_it_was_made,
    "takeover-releases-at-once": modes.test_saved_outputs_are_held_as_well_until_they_are_durable,
    "vacant-slot-open": (
        vertex.test_nothing_is_taken_of_an_owner_that_the_topology_has_revoked_though_nobody_has_its_slot_yet
    ),
    "release-before-durable": (
        modes.test_outputs_are_held_until_their_version_is_durable_and_leave_without_dependencies
    ),
    "runs-while-copied": modes.test_a_model_that_stops_to_be_copied_begins_no_batch_meanwhile,
    "highest-becomes-primary": recovery.test_the_lowest_backup_becomes_primary_and_its_version_the_end,
    "ignore-taint": (
        recovery.test_a_downstream_state_that_holds_an_orphan_fails_over_as_well_in_the_same_commit
    ),
    "joins-keep-orphan": vertex.test_a_token_that_becomes_orphan_is_purged_so_that_its_successor_is_accepted,
    "kept-never-asked": former.test_kept_states_are_asked_only_where_no_in_sync_member_answers,
    "kept-pending": former.test_a_former_primary_reports_its_newest_record_with_only_durable_deps,
    "kept-without-consumed": (
        former.test_it_goes_on_as_primary_with_the_record_of_the_end_and_what_that_has_consumed
    ),
    "lanes-share-fan": joins.test_a_fan_out_operator_runs_once_for_each_of_its_lanes,
    "leave-ack-set-before-shrink": (
        primary.test_a_set_is_shrunk_by_its_primary_alone_and_its_member_counts_until_that_is_known
    ),
    "leaves-at-once": backup.test_a_backup_that_is_to_end_asks_to_be_let_go_and_may_be_promoted_meanwhile,
    "merge-unknown-epoch": (
        vertex.test_a_dependency_on_an_unknown_epoch_is_neither_accepted_nor_acknowledged_yet
    ),
    "mix-fan-out-values": joins.test_values_of_two_executions_of_one_fan_out_are_not_mixed,
    "newest-fence-only": findings.test_an_older_fence_that_comes_late_does_not_relax_a_stricter_one,
    "no-fence": recovery.test_a_downstream_state_that_holds_an_orphan_fails_over_as_well_in_the_same_commit,
    "no-reload": (
        backup.test_a_promoted_backup_loads_its_record_sends_saved_outputs_again_and_announces_first_of_all
    ),
    "no-slot-query": (
        stateless.test_a_new_owner_asks_all_of_a_stateless_successor_and_the_leader_of_a_set_before_it_emits
    ),
    "no-window": primary.test_a_full_window_holds_the_next_update_and_drops_nothing,
    "old-freeze-accepted": backup.test_a_freeze_of_another_generation_is_refused,
    "outputs-not-resent": (
        backup.test_a_promoted_backup_loads_its_record_sends_saved_outputs_again_and_announces_first_of_all
    ),
    "outputs-without-own-dep": (
        primary.test_outputs_leave_at_once_and_depend_on_the_version_they_were_released_with
    ),
    "poison-runs-for-ever": (
        poison.test_after_max_attempts_the_request_gets_a_typed_error_and_others_are_served
    ),
    "query-without-fence": stateless.test_a_successor_fences_the_old_owner_before_it_answers,
    "receipt-counts-as-apply": primary.test_a_version_is_durable_when_the_whole_ack_set_has_applied_it,
    "record-ack-of-old-epoch": primary.test_an_acknowledgement_of_another_epoch_does_not_count,
    "record-of-old-epoch": backup.test_a_record_of_an_older_epoch_is_refused,
    "revoke-last-replica": findings.test_a_frontend_that_is_the_last_replica_of_another_shard_is_not_revoked,
    "replaced-is-dead": lambda: outbox.test_an_owner_that_is_replaced_alive_has_not_died_of_what_it_announced(
        outbox.made()
    ),
    "revoked-goes-on": machine.test_a_revoked_instance_stops_and_its_state_is_kept,
    "restart-takes-keeper": (
        recovery.test_a_state_that_begins_again_takes_no_keeper_of_another_lost_state_with_it_that_may_wake_up
    ),
    "silent-asked-to-go-back": (
        recovery.test_a_primary_that_must_go_back_and_dies_first_keeps_no_attempt_waiting
    ),
    "holds-what-others-wait-for": (
        stateless.test_what_precedes_a_request_that_a_leaving_owner_has_begun_waits_for_no_successor
    ),
    "rollback-drops-keeper": (
        keeper.test_a_primary_that_goes_back_by_itself_keeps_the_keeper_that_holds_the_end
    ),
    "rollback-to-pending": (
        recovery.test_a_tainted_primary_without_backup_goes_back_to_its_newest_record_with_only_durable_deps
    ),
    "route-not-kept": stateless.test_if_only_a_skip_arrived_the_value_is_computed_again_and_the_route_kept,
    "set-before-ack-set": followers.test_a_joiner_enters_the_ack_set_before_it_is_declared_in_sync,
    "shrink-from-outside": recovery.test_a_manager_never_shrinks_a_set_on_its_primarys_behalf,
    "silent-leader-dropped": (
        stateless.test_a_set_whose_leader_died_before_it_answered_must_answer_by_its_new_leader
    ),
    "skip-without-deps": primary.test_a_unit_of_skips_takes_a_seq_and_a_record_but_no_model_and_no_capture,
    "successor-untold": stateless.test_a_successor_is_told_what_is_complete_before_the_slot_moves,
    "slot-goes-to-departed": (
        stateless.test_a_slot_goes_to_nobody_who_has_handed_over_all_that_it_had_or_is_not_registered
    ),
    "slot-moves-while-served": stateless.test_nothing_of_a_slot_begins_while_its_move_may_be_committed,
    "slot-moves-while-busy": stateless.test_a_slot_moves_once_its_owner_has_delivered_everything_it_executed,
    "admits-while-closed": succession.test_only_what_would_be_admitted_is_lost_and_only_once_closed,
    "begins-at-another-cut": succession.test_what_was_fetched_while_the_cut_changed_is_fetched_anew,
    "closed-reopens": succession.test_what_is_closed_stays_closed_though_the_record_is_gone,
    "closes-unasked": succession.test_the_controller_closes_only_once_every_registered_frontend_holds_back,
    "done-at-another-cut": succession.test_the_controller_goes_back_if_anything_was_taken_at_another_cut,
    "done-unguarded": succession.test_the_switch_counts_only_if_everything_is_as_it_was_judged,
    "done-while-open": succession.test_closed_it_names_the_shards_that_it_owns_and_in_which_nothing_is_open,
    "expired-not-told": succession.test_a_key_that_is_pushed_out_is_known_to_be_gone,
    "fetches-unclosed": succession.test_a_process_fetches_at_the_cut_says_it_and_begins,
    "first-table-taken": succession.test_a_later_frontend_takes_a_whole_table_if_anybody_has_one,
    "holds-for-ever": succession.test_requests_are_held_back_for_half_of_their_time_at_most,
    "hopeless-tried-again": succession.test_what_a_model_refuses_is_not_tried_again_and_all_else_three_times,
    "over-goes-on": succession.test_once_the_successor_serves_requests_are_passed_on_for_ever,
    "own-replies-forgotten": succession.test_a_frontend_asks_first_for_what_the_owner_has_taken_over_itself,
    "passed-on-twice": succession.test_what_may_have_been_executed_is_passed_on_again_only_under_its_key,
    "pushed-out-forgotten": succession.test_a_key_that_is_pushed_out_is_known_to_be_gone,
    "quiet-of-another": succession.test_the_cut_is_what_present_owners_say_in_their_present_epochs,
    "quiet-of-old-epoch": succession.test_the_cut_is_what_present_owners_say_in_their_present_epochs,
    "refused-taken": succession.test_a_state_of_another_layout_is_refused_and_the_process_never_begins,
    "requests-not-held": succession.test_requests_wait_from_hold_on_and_go_to_the_core_if_it_is_taken_back,
    "tries-not-counted": succession.test_what_a_model_refuses_is_not_tried_again_and_all_else_three_times,
    "waits-unquiet": succession.test_a_frontend_says_that_it_is_quiet_once_no_client_of_its_own_waits,
    "whole-forgotten": succession.test_a_table_that_is_not_whole_is_never_called_whole_again,
    "update-during-capture": primary.test_the_update_is_entered_only_when_the_version_before_is_captured,
    "unreadable-is-lost": unreadable.test_a_stateless_operator_makes_an_error_of_it_and_acknowledges_it,
    "unreadable-runs": unreadable.test_a_stateless_operator_makes_an_error_of_it_and_acknowledges_it,
    "update-with-orphans": (
        primary.test_an_input_orphaned_before_the_update_leaves_the_batch_and_the_others_run_again
    ),
    "budget-not-counted-down": deadlines.test_what_has_waited_and_run_here_is_handed_on_with_what_is_left,
    "budget-reset-on-resend": deadlines.test_what_is_sent_again_carries_what_is_left_then,
    "error-age-counted": reply_ages.test_an_error_is_not_reported_as_how_long_the_path_takes,
    "reply-age-early": reply_ages.test_a_reply_counts_from_its_release_not_from_when_it_was_decided,
    "reply-age-unsaid": (
        reply_ages.test_a_reply_is_reported_with_its_age_once_and_in_a_notice_that_is_sent_anyway
    ),
    "refusal-forgotten": promises.test_a_request_that_was_refused_is_not_begun_when_its_ask_comes_again,
    "refused-and-logged": (
        promises.test_a_request_that_is_refused_is_not_logged_and_one_that_is_known_is_never_refused
    ),
    "late-and-run": batching.test_a_unit_that_is_late_is_answered_by_a_typed_error_and_never_run,
    "shed-without-token": batching.test_a_unit_that_is_late_is_answered_by_a_typed_error_and_never_run,
    "recorded-budget-anew": deadlines.test_a_promoted_backup_hands_on_what_was_left_when_it_got_its_outputs,
    "complete-before-stored": (
        replayed.test_a_reply_leaves_at_once_and_the_request_is_complete_when_its_state_is_stored
    ),
    "durable-before-stored": (
        replay.test_a_state_is_stored_when_nothing_is_to_be_done_and_durable_when_it_is_there
    ),
    "begins-again-unread": partial(
        replay.test_a_lost_state_waits_for_a_checkpoint_however_slow_its_store_is, {}
    ),
    "stateless-not-asked": (
        replay.test_a_new_primary_asks_everybody_downstream_and_runs_nothing_before_all_have_answered
    ),
    "stores-pending": replay.test_a_state_is_stored_when_nothing_is_to_be_done_and_durable_when_it_is_there,
    "told-unaware": (
        replay.test_who_is_asked_answers_only_once_it_takes_nothing_of_the_former_primary_any_more
    ),
    "runs-unstored": replay.test_nothing_is_executed_before_the_first_version_is_stored,
    "replays-in-arrival-order": (
        replay.test_it_runs_the_same_batches_in_the_same_order_and_what_nobody_knows_of_after_them
    ),
    "replays-one-by-one": replay.test_units_that_were_one_batch_wait_for_each_other,
    "replies-without-determinants": replayed.test_a_shards_new_owner_tells_it_from_its_log,
    "copy-with-old-budgets": deadlines.test_a_copy_tells_what_is_left_when_it_leaves,
    "record-with-old-budgets": (
        deadlines.test_a_record_says_what_is_left_when_it_leaves_and_that_is_what_its_receiver_counts_from
    ),
    "complete-but-sent": modes.test_what_is_held_is_not_sent_once_its_request_is_complete,
    "birth-lost-in-catch-up": (
        differences.test_a_joiner_that_holds_a_version_is_sent_what_changed_since_that
    ),
    "early-alone": early.test_under_block_nothing_is_released_that_only_the_owner_holds_by_now,
    "early-copied-void": early.test_a_copy_holds_no_void_reply_and_vectors_without_what_is_long_past,
    "early-counts-at-once": early.test_the_entry_travels_while_its_vector_is_awaited,
    "early-done-unsent": (
        early.test_that_a_request_is_complete_goes_along_with_the_next_entry_or_after_a_while
    ),
    "early-done-unsettled": early.test_no_request_is_complete_before_its_reply_counts,
    "early-forgotten": (
        early.test_what_was_told_is_told_by_the_next_owner_though_that_does_not_know_yet_that_it_counts
    ),
    "early-not-held": early.test_a_new_owner_tells_a_slots_new_owner_of_pending_replies,
    "early-not-judged": early.test_a_new_owner_releases_a_pending_reply_once_it_is_durable,
    "early-told-again": early.test_a_key_that_is_used_again_waits_for_a_pending_reply,
    "early-undone-lost": early.test_what_an_end_has_made_void_stays_void_though_that_state_is_lost_later,
    "early-void-stays": partial(
        early.test_a_reply_that_becomes_orphan_is_void_and_another_one_follows, dies=False
    ),
    "early-without-skips": early.test_a_reply_depends_on_the_skips_before_it_too,
    "clean-though-unknown": (
        receipts.test_a_primary_that_has_not_got_its_state_yet_does_not_say_that_it_is_clean
    ),
    "end-with-lost-deps": (
        receipts.test_a_set_goes_on_from_the_newest_version_held_whose_dependencies_survive
    ),
    "ends-stay": receipts.test_ends_are_sought_anew_with_each_answer_and_only_sink,
    "epoch-forgets-deps": (
        receipts.test_who_is_promoted_takes_over_what_the_version_depends_on_that_it_begins_with
    ),
    "held-version-dropped": (
        receipts.test_it_keeps_every_version_that_may_be_pending_and_the_durable_one_before_them
    ),
    "receipt-before-held": receipts.test_what_is_not_held_is_not_acknowledged,
    "stable-before-all": (
        receipts.test_a_version_is_stable_when_all_have_received_it_and_durable_when_all_that_it_depends_on_is
    ),
    "stable-is-durable": (
        receipts.test_a_version_is_stable_when_all_have_received_it_and_durable_when_all_that_it_depends_on_is
    ),
    "forward-of-any-epoch": news.test_a_forward_of_a_former_epoch_begins_nothing_in_a_later_one,
    "lost-race-waits": replica.test_what_won_may_be_known_before_the_outcome_is,
    "news-not-awaited": (
        undecided.test_a_keeper_takes_a_copy_that_came_before_its_topology_as_soon_as_it_knows_that
    ),
    "word-of-a-suspect": keeper.test_what_a_primary_said_before_it_was_suspected_itself_lets_no_keeper_go,
}


@pytest.mark.parametrize("name", sorted(KILLERS))
def test_leaving_out_a_rule_breaks_its_transcript(name: str, mutant: Callable[[str], None]) -> None:
    KILLERS[name]()
    mutant(name)
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError)):
        KILLERS[name]()
