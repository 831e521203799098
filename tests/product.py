"""A copy of the product with a small study in it, and Snakemake as a user calls it there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import snakemake_fork
import yaml
from conftest import ROOT, STUDY

from lmscaling.store import EXPORTS, FITTED

PARTS = ("workflow", "config", "profiles", "default", "slurm")
FILES = {"learning_curves", "context_scaling", "loss_by_position", "throughput"}
"""Files of figures/ that the product here has; all are drawn in other tests."""
CURVES = {"learning_curves", *(f"learning_curves_{axis}" for axis in ("flops", "hours", "tokens"))}
FIGURES = FILES | CURVES | {"parameter_scaling"}
"""Figures of these files."""
OVERLAY: dict[str, Any] = STUDY | {
    "axes": {**STUDY["axes"], "seed": [0], "lr_scale": [1.0]},
    "protocol": {"all": 1, "linear": 1},
    # Over the real study's: one of the two cells has all that a cell can have.
    "calibrate": {"attention": "linear"},
    "branches": {"attention": "linear", "shares": [0.5]},
    "evaluate": {"attention": "linear", "datasets": ["lines"]},
    "speed": {
        "timeout_seconds": 60, "repeats": 3, "target_seconds": 0.01,
        "time_step": [STEP := {
            "sizes": ["s"], "contexts": [16], "implementations": ["linear/chunked", "softmax"],
            "chunks": [8, 16],
        }],
        "time_decode": None, "time_layer": [],
    },
    "published": False,
}  # fmt: skip

OTHER = {"kind": "jsonl", "train": ["b.jsonl", "v.jsonl"], "validation": ["a.jsonl"]}
MORE: dict[str, Any] = {
    "datasets": STUDY["datasets"] | {"other": OTHER},
    "evaluate": {"datasets": ["lines", "other"]},
    "branches": {"attention": "linear", "shares": [0.5, 0.75]},
    "speed": OVERLAY["speed"] | {"time_step": [STEP | {"contexts": [16, 32]}]},
}
"""Changes that add a text to evaluate on, a share, and a context of the speed study."""

# Takes the place of ``__main__.py``.
INSTEAD = f'''
"""Leaves the files of every verb at once, for tests of what the workflow plans."""

import json
import os
import sys
import uuid
from pathlib import Path

verb, *words = sys.argv[1:]
after = dict(zip(words, words[1:]))


def leave(path, value={{}}):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(value))


if verb in ("record", "tokenize"):
    from lmscaling.cli import main

    main()
elif verb in ("plan", "evaluate", "verify"):
    leave(after.get("--out") or after["--mark"])
elif verb == "manifest":
    leave(words[0], {{"train": [{{}}] * int(words[1]), "validation": [{{}}] * int(words[2])}})
elif verb == "train":
    # As train/run.py decides; each training has a number of its own.
    from lmscaling.runtime import planned

    out, records = Path(after["--out"]), []
    for cell in words[: words.index("--manifest")]:
        record = out.parent / Path(cell).stem / planned.RECORD
        scratch = Path(after["--scratch"], Path(cell).stem)
        scratch.mkdir(parents=True, exist_ok=True)
        reason = record.exists() and planned.why_kept(record)
        if record.exists() and not reason:
            planned.move_aside(record, scratch)
        print(reason or "trained", flush=True)
        if "FAIL_AT" in os.environ and not reason:
            leave(scratch / "checkpoint")
            sys.exit("told to fail")
        if not record.exists():
            (scratch / "checkpoint").unlink(missing_ok=True)
            leave(record.with_name("log.jsonl"))
            leave(record.with_name("model.safetensors"))
            leave(record, {{"status": "done", "id": uuid.uuid4().hex}})
        records.append(record)
    planned.copy(records, out)
    if "FAIL_AFTER" in os.environ:
        sys.exit("told to fail after the end")
elif verb in ("calibrate", "check"):
    leave(words[-1])
elif verb == "measure":
    from lmscaling.config import study_file, sweeps

    *_, kind, name = Path(words[1]).parts
    study = study_file.read_record(Path(words[1]).parents[2] / "study.json").grid.study
    points = [point.name for point in sweeps.expand(study)[f"{{kind}}/{{name}}"].points]
    for point in points:
        leave(f"{{words[1]}}/{{point}}.json", {{"status": "done"}})
    leave(f"{{words[1]}}/sweep.json", {{"statuses": dict.fromkeys(points, "done")}})
elif verb == "build-store":
    for table in {[*EXPORTS, *FITTED]}:
        leave(f"{{words[0]}}/store/{{table}}.parquet")
elif verb == "figure":
    for name in {sorted(FIGURES)}:
        for kind in ("svg", "png", "csv"):
            leave(f"{{words[0]}}/figures/{{name}}.{{kind}}")
elif verb == "report":
    leave(f"{{words[0]}}/report.html")
'''


class Place:
    """A copy of the product with a study of two cells in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.results = root, root / "results" / "tiny"
        self.package = root / "src" / "lmscaling"

    @property
    def environment(self) -> dict[str, str]:
        """That of a user who runs the copy's own source, which a test can edit."""
        return os.environ | {"PYTHONPATH": str(self.root / "src")}

    def typed(self, *arguments: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "snakemake", "--configfile", "tiny.yaml", *arguments]
        return {"args": words, "cwd": self.root, "env": self.environment, "text": True}

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(**self.typed(*arguments), **options)

    def snakemake(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        if {"-n", "-np"} & {*arguments}:
            words = ("--configfile", "tiny.yaml", *arguments)
            done = snakemake_fork.snakemake(self.root, self.environment, *words)
        else:
            done = subprocess.run(**self.typed(*arguments), capture_output=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def lmscaling(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "lmscaling", *arguments]
        return subprocess.check_output(command, cwd=self.root, env=self.environment, text=True)

    def plan(self, *arguments: str) -> list[tuple[str, str]]:
        """What a dry run would do: rule and first output, sorted."""
        text = self.snakemake("-n", "-p", *arguments)  # -p lists each job
        jobs, rule = [], ""
        for line in (text.stdout + text.stderr).splitlines():
            if match := re.match(r"(?:local)?rule (\w+):$", line):
                rule = match[1]
            elif match := re.match("    output: (.*?)(?:, | [(]|$)", line):  # the first, no flags
                jobs.append((rule, match[1]))
        return sorted(jobs)

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new, 1))

    def append(self, path: str, text: str) -> None:
        with (self.root / path).open("a") as file:
            file.write(text)

    def study(self, **changes: Any) -> None:
        values = yaml.safe_load((self.root / "tiny.yaml").read_text())
        for key, value in changes.items():
            inner = isinstance(value, dict) and key in values
            values[key] = {**values[key], **value} if inner else value
        (self.root / "tiny.yaml").write_text(yaml.safe_dump(values))

    def copy(self, folder: Path) -> "Place":
        """Another place with all of this one; times are kept."""
        shutil.copytree(self.root, folder, symlinks=True)
        return Place(folder)


def trained(plan: list[tuple[str, str]]) -> list[str]:
    runs = [Path(out).stem for rule, out in plan if rule == "train"]
    return [run.rpartition("-")[0] for run in runs]


def copied(root: Path, *parts: str) -> None:
    root.mkdir(exist_ok=True)
    ignore = shutil.ignore_patterns("*.egg-info")
    for part in parts:
        if (ROOT / part).is_dir() and not (ROOT / part).is_symlink():
            shutil.copytree(ROOT / part, root / part, symlinks=True, ignore=ignore)
        else:
            shutil.copy2(ROOT / part, root / part, follow_symlinks=False)


def leave(path: Path, text: str = "{}") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def documents(folder: Path, **lengths: int) -> None:
    """Texts of so many documents, as ``name.jsonl``."""
    for name, n in lengths.items():
        rows = (json.dumps({"text": f"{name} document {i}"}) + "\n" for i in range(n))
        (folder / f"{name}.jsonl").write_text("".join(rows))


def product(root: Path) -> Place:
    """A copy of the product with the study, nothing of it done."""
    copied(root, *PARTS, "src")
    others = shutil.ignore_patterns("*.[!c]*")
    shutil.copytree(ROOT / "results/published", root / "results/published", ignore=others)
    for path in (root / "src/lmscaling/figures").glob("[a-z]*.py"):
        if path.stem not in FILES:
            path.unlink()
    documents(root, a=400, b=100, v=60)
    (root / "tiny.yaml").write_text(yaml.safe_dump(OVERLAY))
    return Place(root)


def without_verbs(root: Path) -> Place:
    """The same, but its jobs take no time and compute nothing."""
    place = product(root)
    (place.package / "__main__.py").write_text(INSTEAD)
    return place
