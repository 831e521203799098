"""Why Slurm did not accept a job: what passes by itself, and what a user must change, and where.

The sentences are those of ``src/common/slurm_errno.c`` and of ``job_reason_string`` in Slurm 22.05
to 25.05; a site's own plugin may say others.
"""

import re
from collections.abc import Sequence
from pathlib import Path

PASSES = re.compile(
    # A limit on the number of jobs. Its sentence also stands for limits on the size of a job, and
    # then the name of another limit stands before it.
    r"Submit\w*Limit|MaxJobCount|queue full|^Job violates accounting/QOS policy"
    # The controller is restarted, busy, or shields itself from too many questions.
    r"|Unable to contact|timed?[ -]?out|Zero Bytes|Rate limit exceeded|temporarily|try again|retry"
    r"|standby mode|shutting down|Communication \w+ failure|Message \w+ failure"
    r"|Connection (refused|reset|rejected)|Protocol authentication error|Munge"
    r"|does not answer|problem talking to (the )?database|Unable to connect to database"
    # Maintenance: "Required partition not available (inactive or drain)".
    r"|Required partition not available",
    re.IGNORECASE,
)
"""What a later try may not meet again."""

KEYS = {
    "partition (name|specified)": ("slurm_partition",),
    "permitted to use this partition": ("slurm_partition",),
    "No partition specified": ("slurm_partition",),
    "Invalid account": ("slurm_account", "slurm_partition"),
    "Invalid qos": ("qos",),
    "Invalid feature": ("constraint",),
    "reservation": ("slurm_extra",),
    "Invalid node name": ("slurm_extra",),
    "'slurm_extra'": ("slurm_extra",),
}
"""Sentences about a name that is given in the profile, and its keys there."""


def sentence(message: str) -> str:
    """Slurm's own words in what ``sbatch`` prints, or in the error that the plugin reports."""
    told = re.search(r"The error message was '(.*?)'\.?\n\s*sbatch call", message, re.DOTALL)
    lines = (told[1] if told else message).strip().splitlines()
    errors = [line for line in lines if "error:" in line]
    words = [re.sub(r"^.*?error: |Batch job submission failed: ", "", line) for line in errors]
    return "; ".join(words) or " ".join(lines) or "sbatch gave no reason"


def passes(reason: str) -> bool:
    """Whether to wait: a later try may not meet this again."""
    return bool(PASSES.search(reason)) or reason == "sbatch gave no reason"


def keys(reason: str) -> tuple[str, ...]:
    """Keys of the profile that name what Slurm does not accept; none for another reason."""
    return next((keys for words, keys in KEYS.items() if re.search(words, reason, re.I)), ())


def place(profile: Path | None, key: str, value: object, words: Sequence[str]) -> str:
    """Where a user changes a key.

    Args:
        profile: File of the profile; None without one.
        key: Name of a resource of Snakemake, such as ``slurm_partition``.
        value: What the job asked for; None if nothing.
        words: The command line, which overrides the profile.

    Returns:
        The key and the line of the profile as ``path:line``: that with the value, else one with the
        key, else one where the key is in a comment; or the words of the command line.
    """
    if typed := [word for word in words if re.search(rf"\b{key}=", word)]:
        return f"{typed[-1]} in the command"
    if profile is None:
        return f"--default-resources {key}=..."
    lines = profile.read_text().splitlines()
    patterns = (
        *([rf"\s*{key}\s*:.*{re.escape(str(value))}"] if value is not None else []),
        rf"\s*{key}\s*:",
        rf"\s*#\s*{key}\s*:",
        r"default-resources\s*:",
    )
    for pattern in patterns:
        for number, line in enumerate(lines, start=1):
            if re.match(pattern, line):
                return f"{key} in {profile}:{number}"
    return f"{key} in {profile}"
