"""The rows of ``docs/errors.md`` quote existing messages, and each row has existing tests."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: how a row begins -> the tests of its statements, by file
TESTS: dict[str, dict[str, tuple[str, ...]]] = {
    "`--output-dir exists and is not empty`": {
        "output/test_finished.py": (
            "test_outputs_without_these_options_have_no_record_and_are_neither_skipped_nor_replaced",
            "test_an_output_that_is_not_what_was_written_is_an_error",
        ),
    },
    "`the finished output lacks": {
        "output/test_finished.py": (
            "test_an_output_without_a_log_that_failed_is_not_complete",
            "test_an_output_that_is_not_what_was_written_is_an_error",
        ),
    },
    "`--verify: the copy was not published": {
        "commands/test_since.py": ("test_a_copy_is_published_after_it_was_found_good",),
    },
    "`copied in full: …`": {
        "run/test_since.py": (
            "test_a_log_that_does_not_continue_the_previous_copy_is_copied_in_full",
            "test_an_output_that_cannot_be_continued_is_refused",
        ),
        "commands/test_since.py": ("test_a_copy_in_full_is_named_with_its_reason",),
    },
    "`Java … can corrupt data": {
        "startup/test_java_version.py": ("test_a_java_whose_collector_corrupts_data_is_refused",),
    },
    "`needs Java 17 or newer": {
        "startup/test_java_version.py": (
            "test_a_missing_or_old_java_is_one_line_and_nothing_is_changed",
            "test_commands_that_need_no_spark_run_without_java",
        ),
    },
    "`no logs here`": {
        "commands/test_compact.py": (
            "test_a_pattern_that_no_topic_matches_is_a_usage_error_unless_that_is_allowed",
            "test_a_directory_without_logs_is_a_usage_error_unless_that_is_allowed",
            "test_a_run_without_logs_leaves_nothing_in_the_directory",
        ),
    },
    "`log directory is in use": {
        "crash/test_beside_a_broker.py": (
            "test_a_broker_does_not_start_while_the_job_runs",
            "test_a_second_job_reports_the_holder_of_the_lock",
            "test_the_job_refuses_the_directory_of_a_running_broker",
            "test_a_dry_run_reads_and_warns_that_a_broker_is_running",
        ),
        "run/test_log_reports.py": ("test_a_changed_log_is_distinguished_from_one_in_use",),
        "files/test_lock.py": ("test_the_error_names_directory_holder_and_remedy",),
    },
    "`cannot lock the log directory": {
        "crash/test_surroundings.py": (
            "test_a_directory_that_may_not_be_locked_is_a_usage_error",
            "test_a_read_only_mount_is_a_usage_error",
            "test_a_log_that_may_not_be_read_fails_and_the_others_are_cleaned",
            "test_a_log_that_may_not_be_written_fails_and_the_others_are_cleaned",
        ),
    },
    "`… are free, less than the margin": {
        "run/test_waves.py": ("test_a_disk_without_the_margin_fails_all_logs_at_once_with_the_space_that_is_needed",),
    },
    "`its cleaned segments take": {
        "crash/test_surroundings.py": (
            "test_a_log_that_does_not_fit_is_refused_with_figures_before_anything_is_written",
            "test_a_refused_log_fits_once_other_logs_have_freed_space",
        ),
        "run/test_admission.py": ("test_a_part_needs_its_space_twice",),
    },
    "`No space left on device`": {
        "crash/test_surroundings.py": ("test_a_disk_that_fills_up_while_outputs_are_written_leaves_the_log_unchanged",),
    },
    "the run was killed": {
        "crash/test_kill.py": ("test_the_run_after_a_killed_one_finishes_its_work",),
        "crash/test_beside_a_broker.py": ("test_a_broker_started_after_a_stop_serves_every_survivor",),
        "output/test_swap.py": (
            "test_after_any_interruption_recovery_restores_the_sources_or_finishes_the_swap",
            "test_a_broker_started_after_any_interruption_serves_every_survivor",
            "test_recovery_can_itself_be_interrupted",
        ),
    },
    "executors are lost": {
        "crash/test_retries.py": ("test_failed_tasks_are_retried", "test_an_output_part_written_by_two_tasks_is_used_once"),
    },
    "`a repeated task failed": {
        "passes/test_repeated_tasks.py": ("test_a_repeated_task_whose_read_fails_fails_its_log_alone",),
        "crash/test_lost_executors.py": ("test_no_record_is_lost_when_tasks_are_repeated",),
    },
    "`Spark's job failed": {
        "spark/test_callers_session.py": ("test_a_failure_of_spark_is_one_line_with_its_cause",),
    },
    "`no task has started": {
        "spark/test_callers_session.py": (
            "test_resources_that_no_worker_has_are_named",
            "test_a_job_without_a_started_task_says_why",
        ),
    },
    "`batch fails its CRC`": {
        "damage/test_job.py": (
            "test_one_line_says_which_log_which_file_and_where",
            "test_on_spark_the_error_names_the_same_log_file_and_position",
        ),
        "damage/test_segments.py": (
            "test_an_inactive_segment_truncated_within_a_batch_fails_its_log",
            "test_a_flipped_bit_under_a_checksum_fails_the_log",
            "test_an_active_segment_truncated_anywhere_has_a_torn_tail",
            "test_damaged_indexes_and_snapshots_do_not_fail_the_log",
        ),
        "recovery/test_rebuild.py": ("test_broken_indexes_are_rebuilt_as_a_broker_would_have_written_them",),
    },
    "`…-checkpoint`": {
        "damage/test_job.py": ("test_a_malformed_checkpoint_fails_the_logs_of_its_directory",),
    },
    "`segment has changed": {
        "crash/test_surroundings.py": (
            "test_a_segment_that_vanishes_fails_its_log",
            "test_a_directory_that_replaces_another_is_not_changed",
            "test_a_segment_that_changes_during_the_run_is_not_replaced",
        ),
        "crash/test_trust.py": (
            "test_batches_replaced_by_other_valid_ones_between_the_passes_fail_the_log",
            "test_a_bit_flipped_between_the_passes_gets_no_new_checksum",
            "test_a_file_truncated_while_it_is_read_is_one_logs_error",
        ),
    },
    "`output is read back": {
        "crash/test_trust.py": (
            "test_an_output_that_differs_from_what_was_written_is_never_swapped_in",
            "test_a_bad_sector_is_one_logs_error",
        ),
        "trust/test_lying_storage.py": (
            "test_no_disk_fault_ends_in_exit_code_0_and_other_bytes",
            "test_every_corrupted_write_is_detected",
        ),
    },
    "`log directory is claimed": {
        "log/test_claim.py": (
            "test_a_second_run_fails_if_the_first_may_be_active",
            "test_the_claim_of_a_killed_run_of_this_machine_is_superseded",
            "test_a_run_of_another_boot_has_ended_only_on_a_local_disk",
        ),
    },
    "`is a link to …`": {
        "crash/test_directories.py": (
            "test_a_partition_link_that_leaves_the_log_directory_is_refused",
            "test_a_partition_link_is_followed_with_its_real_directorys_lock",
            "test_a_partition_that_is_a_mount_point_is_not_changed_without_its_directorys_lock",
        ),
    },
    "`the journal of an earlier run": {
        "output/test_swap.py": ("test_a_malformed_journal_fails_the_log_and_changes_nothing",),
        "commands/test_compact_safety.py": ("test_a_journal_with_other_paths_is_malformed",),
        "trust/test_adversary.py": ("test_a_planted_journal_is_its_logs_error_at_most",),
    },
    "`cleanup.policy is unknown`": {
        "commands/test_unknown_policy.py": (
            "test_expire_keeps_compacted_topics_whose_policy_is_in_another_directory",
            "test_compact_reports_skipped_logs_of_unknown_policy",
            "test_with_the_metadata_log_expire_applies_the_policies",
        ),
        "log/settings/test_metadata_sources.py": ("test_a_topic_without_its_own_policy_needs_server_properties",),
    },
    "`--output-dir is a mount": {
        "crash/test_copies.py": ("test_a_mount_point_as_the_output_directory_is_refused_before_any_work",),
    },
    "`… _manifest.json lists": {
        "object_store/test_finished_outputs.py": (
            "test_only_the_log_with_a_changed_object_fails",
            "test_a_copy_of_an_output_is_read",
        ),
        "files/test_source_check.py": (
            "test_insignificant_files_are_ignored",
            "test_a_log_with_a_changed_object_fails",
        ),
    },
    "`its timestamps do not say when its records arrived": {
        "policies/test_times.py": ("test_other_timestamps_are_replaced_by_file_times_or_refused",),
        "policies/test_over_time.py": ("test_a_log_that_cannot_be_simulated_fails",),
    },
    "`compiled kernels are kept in": {
        "kernels/test_cache.py": (
            "test_files_that_others_could_have_planted_never_run",
            "test_a_chosen_directory_that_others_may_write_to_is_not_used_with_a_warning",
            "test_nothing_is_written_without_a_cache",
        ),
    },
    "`… of … records": {
        "commands/test_compact_safety.py": (
            "test_more_than_one_percent_without_a_key_is_refused",
            "test_allow_keyless_drops_records_without_a_key",
            "test_a_dry_run_refuses_as_the_real_run_does",
        ),
    },
    "`__cluster_metadata is": {"commands/test_compact_safety.py": ("test_the_metadata_log_is_never_changed",)},
    "a log is `skipped`": {
        "rules/test_plan.py": (
            "test_a_log_that_is_not_to_be_compacted_is_skipped",
            "test_a_skip_for_the_ratio_has_its_numbers_and_the_source_of_the_bound",
            "test_a_log_held_back_by_min_compaction_lag_says_so",
            "test_an_empty_log_is_skipped",
        ),
    },
    "the newest data": {"rules/test_plan.py": ("test_the_last_segment_of_an_export_is_cleaned",)},
    "`missing: …` from `make`": {"test_frame.py": ("test_each_missing_thing_is_one_line_that_says_what_to_install",)},
    "New files have the mode": {
        "commands/test_compact_safety.py": (
            "test_outputs_have_the_mode_of_their_sources_whatever_the_umask",
            "test_new_files_belong_to_the_owner_of_the_sources",
            "test_unfinished_outputs_are_as_private_as_their_sources",
            "test_keys_values_and_headers_are_in_no_output",
        ),
        "crash/test_planted_links.py": ("test_modes_owners_and_attributes_survive_the_replacement_of_files",),
    },
}
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
ROWS = [line.removeprefix("| ") for line in PAGE.splitlines() if line.startswith("| ")][2:]
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "compaction").rglob("*.py"))
NAMES = {"{LOCK}": ".lock", "{CLUSTER_METADATA_TOPIC}": "__cluster_metadata", "{MANIFEST}": "_manifest.json"}
NAMES["{OLDEST_JAVA}"] = "17"
for _placeholder, _name in NAMES.items():
    SOURCES = SOURCES.replace(_placeholder, _name)
#: messages of the operating system
SYSTEM = {os.strerror(number) for number in errno.errorcode}


@pytest.mark.parametrize("start", TESTS)
def test_the_tests_of_each_row_exist(start: str) -> None:
    assert [row for row in (*ROWS, *PAGE.splitlines()) if row.startswith(start)]
    for file, names in TESTS[start].items():
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        for name in names:
            assert f"def {name}(" in text, name


def test_every_row_has_tests() -> None:
    assert [row for row in ROWS if not row.startswith(tuple(TESTS))] == []


def test_the_messages_are_those_of_the_program() -> None:
    quoted = re.findall(r"`([^`]+)`", "\n".join(row.partition(" | ")[0] for row in ROWS))
    parts = [part.strip(" :%()") for message in quoted for part in re.split("…|process", message)]
    sentences = [part for part in parts if " " in part and part not in SYSTEM]
    assert len(sentences) >= 8
    for sentence in sentences:
        # "cannot" precedes the failed action
        assert sentence.removeprefix("cannot ") in SOURCES, sentence
