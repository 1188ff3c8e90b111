"""The commands, and what runs them.

Tested by ``tests/jobs/test_help.py``.
"""

#: the console command, and what runs the applications on clusters
PROGRAM = "kafka-log-compaction"
SUBMIT = "spark-submit"

#: name, module and purpose of each command
COMMANDS = (
    ("compact", "compact", "clean logs as Kafka's log cleaner would; with --dry-run only report the result"),
    ("expire", "expire", "apply the delete policy: retention by time, by size and by log start offset"),
    ("erase", "erase", "erase all records of given keys, and leave everything else as it is"),
    ("dry-run", "dry_run", "compare several policies side by side, writing nothing to the logs"),
    ("verify", "verify", "verify that cleaned logs lost and changed nothing; explain why a record was dropped"),
    ("dump-log", "dump_log", "print segments, indexes and snapshots as Kafka's own dump tool does"),
    ("count", "count_keys", "count records, distinct keys and tombstones, exactly, and name the largest keys"),
    ("doctor", "doctor", "check the machine, log directories, and logs whose cleaner has died; say what to fix"),
    ("warm-up", "warm_up", "compile all kernels in advance, as while an image is built"),
    ("completion", "completion", "print a script that completes these commands and their options in a shell"),
)
