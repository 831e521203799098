"""Lets Snakemake ask Slurm every second, for tests: by itself it waits longer and longer.

Python reads this at its start in processes that have this folder on their path.
"""

import sys

if any(word.endswith("snakemake") for word in sys.orig_argv[1:2]):
    from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

    RemoteExecutor.next_seconds_between_status_checks = property(  # type: ignore[assignment]
        lambda executor: 1, lambda executor, seconds: None
    )
