"""Submitting jobs to Slurm: waiting where it takes no job now, ending where it never will.

Snakemake's plugin (up to 2.8.0) takes every rejection by ``sbatch`` for a failure of the job. A
limit on the number of jobs, or a controller that is restarted, then uses up all attempts of a run
within seconds. After Ctrl-C it also submits the jobs that are still in its own queue, and cancels
none if it is asking for their states at that moment.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from lmscaling.runtime import slurm_rejections as rejections
from lmscaling.runtime.slurm_queue import Queue, say

PLUGIN = "snakemake_executor_plugin_slurm"

FIRST_SECONDS, LONGEST_SECONDS = 5.0, 120.0
"""Shortest and longest time between two tries of a job; it is half of the time waited so far. A job
that is accepted lets the others try at once."""


class Submission:
    """The submission of jobs by one Snakemake.

    The plugin runs ``run_job`` in two threads of its own, while another thread asks for the states
    of the jobs. So a job that waits holds up neither jobs that run nor rules on this machine.
    """

    def __init__(
        self, executor: Any, queue: Queue, profile: Path | None, words: Sequence[str]
    ) -> None:
        """Take the place of the executor's own methods.

        Args:
            executor: The ``Executor`` of the plugin.
            queue: Jobs that Slurm has already.
            profile: File of the profile in use, to say which line of it is wrong.
            words: The command line.
        """
        self.executor, self.queue, self.profile, self.words = executor, queue, profile, words
        self._changed = threading.Condition()
        self._open: set[Any] = set()  # in one of the two threads
        self._waiting: set[Any] = set()
        self._since = 0.0
        self._accepted = 0
        self._ended = False
        self._rejection = threading.local()
        self._submit = executor.run_job
        self._report = executor._report_job_error_threadsafe
        self._cancel = executor.cancel
        self._cancel_jobs = executor.cancel_jobs
        self._shutdown = executor.shutdown
        executor.run_job = self.run_job
        executor.cancel = self.cancel
        executor.cancel_jobs = self.cancel_jobs
        executor.shutdown = self.shutdown
        executor._report_job_error_threadsafe = self._keep
        # Slurm has its own defaults. The plugin would guess the account with a wrong call of sacct,
        # and ask sacctmgr before each job for what sbatch says anyway.
        executor._fallback_account_arg = executor._fallback_partition = ""
        self._plugin: Any = sys.modules[PLUGIN]
        self._plugin.validate_account = lambda account, logger: account

    def run_job(self, job: Any) -> None:
        """Submit a job, however long Slurm takes none."""
        self._open.add(job)
        try:
            self._run_job(job)
        except Exception as error:  # the pool of threads would keep it to itself
            self._fail(job, f"It was not submitted: {error!r}")
        finally:
            self._open.discard(job)

    def cancel(self) -> None:
        """End the submission at once, then cancel the jobs of this Snakemake."""
        self._end()
        pool = self.executor._job_submission_executor
        pool.shutdown(wait=False, cancel_futures=True)
        while self._open:
            # sbatch itself waits two minutes for a full queue, squeue for a controller.
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if child.name() in ("sbatch", "squeue"):
                        child.terminate()
            time.sleep(0.1)
        self._cancel()

    def cancel_jobs(self, active_jobs: Sequence[Any]) -> None:
        """Cancel all jobs of this Snakemake by their name, which is that of its run.

        The plugin's own list is empty while another thread asks for the states of its jobs. Arrays
        of jobs do not pass through ``run_job``, so they are not counted here.
        """
        if self._accepted or self.executor.array_jobs:
            self._cancel_jobs([SimpleNamespace(external_jobid=f"--name={self.executor.run_uuid}")])

    def shutdown(self) -> None:
        """End when the jobs on this machine have ended.

        After an error Snakemake closes the event loops of their threads without waiting for them,
        which shows tracebacks.
        """
        self._shutdown()
        if local := self.executor.workflow.scheduler._local_executor:
            local.shutdown()

    def _run_job(self, job: Any) -> None:
        while not self._is_over():
            reason = self._try(job)
            if not reason:
                return self._accept(job)
            if not rejections.passes(reason):
                return self._refuse(job, reason)
            self._wait(job, reason)
        if not self._ended:
            self._fail(job, "It was not submitted, because Snakemake was asked to stop.")
        return None

    def _try(self, job: Any) -> str:
        """Submit a job once; the sentence of a rejection, or empty."""
        self.queue.refresh()
        if self.queue.complaint:  # then it is not known whether the run has an earlier job
            return self.queue.complaint
        job.attempt = job.attempt  # Snakemake now asks the rules again what the job needs
        try:
            self._plugin.validate_slurm_extra(job)  # run_job would show a traceback
        except self._plugin.WorkflowError as error:
            return str(error)
        self._rejection.message = ""
        self._submit(job)
        message = vars(self._rejection).pop("message")
        return rejections.sentence(message) if message else ""

    def _keep(self, job_info: Any, message: str) -> None:
        """Takes the place of reporting an error, which would count an attempt.

        An array of jobs is not tried again.
        """
        if hasattr(self._rejection, "message"):
            self._rejection.message = message
        else:
            self._report(job_info, message)

    def _accept(self, job: Any) -> None:
        with self._changed:
            self._accepted += 1
            if job in self._waiting:
                self._waiting.discard(job)
                if not self._waiting:
                    waited = time.monotonic() - self._since
                    say(f"Slurm takes jobs again, after {waited / 60:.1f} minutes")
            self._changed.notify_all()

    def _wait(self, job: Any, reason: str) -> None:
        """Wait for the next try, or until another job is accepted, or until the end."""
        with self._changed:
            now, accepted = time.monotonic(), self._accepted
            if not self._waiting:
                self._since = now
                say(
                    f"Slurm takes no job now: {reason}. The submission waits and tries again by "
                    "itself; no attempt is counted"
                )
            self._waiting.add(job)
            pause = min(LONGEST_SECONDS, max(FIRST_SECONDS, (now - self._since) / 2))
            self._changed.wait_for(
                lambda: self._is_over() or self._accepted > accepted, timeout=pause
            )

    def _refuse(self, job: Any, reason: str) -> None:
        """Fail a job that Slurm will never accept, or end the submission if none is accepted."""
        with self._changed:
            self._waiting.discard(job)
        keys = rejections.keys(reason)
        if not keys and self._accepted:
            self._fail(job, f"Slurm will not accept it: {reason}. It is not tried again.")
            return
        name = " ".join([job.name, *(getattr(job, "wildcards", None) or [])])
        message = f"Slurm does not accept the job {name}: {reason}. "
        if keys:
            places = [
                rejections.place(self.profile, key, job.resources.get(key), self.words)
                for key in keys
            ]
            message += f"Edit {' or '.join(places)}, then type the same command again."
        else:
            message += "It has accepted no other job before, so the submission ends."
        if self._end():
            self._leave(message)

    def _leave(self, message: str) -> None:
        """End Snakemake, but not the jobs that run."""
        if self._accepted:
            command = ["scancel", "--state=PENDING", f"--name={self.executor.run_uuid}"]
            subprocess.run(command, capture_output=True, timeout=60, check=False)
            message += (
                " Jobs that run go on, and the same command finds their results. Jobs that had"
                " not begun are cancelled, because they need files of this Snakemake to begin."
            )
        error = self._plugin.WorkflowError(message)
        self.executor.workflow.scheduler.executor_error_callback(error)

    def _fail(self, job: Any, message: str) -> None:
        """Report a failure that no retry can mend."""
        job.attempt = job.restart_times + 1
        self._report(self._plugin.SubmittedJobInfo(job), message)

    def _end(self) -> bool:
        """Submit nothing more; False if it was said already."""
        with self._changed:
            first, self._ended = not self._ended, True
            self._changed.notify_all()
        # The thread that asks for states sleeps up to three minutes, and is not waited for.
        self.executor.wait_thread = SimpleNamespace(join=lambda: None)
        return first

    def _is_over(self) -> bool:
        return self._ended or bool(self.executor.workflow.scheduler._user_kill)
