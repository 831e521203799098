# The study, what was there when it was planned, and how inputs of what has ended are named.

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from lmscaling import registry
from lmscaling.config import grid, new_study, study_file
from lmscaling.types import digest
from lmscaling.errors import UserError
from lmscaling.files import update_text
from lmscaling.runtime import gpus, planned, rank
from lmscaling.status import failures
from lmscaling.workflow import study as of_study
from lmscaling.workflow.measurements import Devices, Evaluations, Sweeps
from lmscaling.workflow.runs import BRANCHES, TRUNK, Runs
from lmscaling.workflow.text import CHUNK, Shards

# Jobs inherit the variable, so where it is set this is a job. It reads the study as it was planned,
# see runtime/planned.py.
IN_JOB = rank.PLAN in os.environ
PLAN = planned.of_this_job()

# Another workflow may use this one as a module. The Snakefile that `lmscaling new` writes includes
# it, and names the study that is run without --configfile.
RULES = Path(str(workflow.current_basedir)).parent
IS_CHECKOUT = Path(str(workflow.basedir)) in (RULES, RULES.parent)
IS_MODULE = not IS_CHECKOUT and "DEFAULT_STUDY" not in globals()
STUDY_FILE = registry.project_file("config/study.yaml")
FOLDER = str(config.get("results", "results"))  # of all studies


# Study files are read here, and not by Snakemake, which knows no places and lets equal keys pass.
def study():
    if PLAN:
        return PLAN.study, replace(grid.expand(PLAN.study), folder=PLAN.folder)
    if IS_MODULE:
        values = study_file.overridden(config, [])
    elif workflow.config_settings.replace_workflow_config:
        values = study_file.overridden(config, OVERRIDES)
    else:
        values = study_file.read_study([STUDY_FILE, *FILES], CHANGES, OVERRIDES)
    if new_study.needs_counts(values):
        try:  # planning does without PyTorch otherwise
            from lmscaling.model import sizing
        except ModuleNotFoundError as error:
            raise UserError(
                f"budget: FLOPs and parameters are counted by PyTorch, and {error.name} is missing; "
                "install it, or write the budget in updates or tokens"
            ) from None

        sizing.count(values)
    return values, new_study.plan(values, FOLDER)


CHANGES = {} if IS_MODULE else dict(workflow.config_settings.config)
OVERRIDES = study_file.passed(CHANGES.pop(study_file.SET, None))
for settings in (CHANGES, config):
    settings.pop("results", None)
FILES = [] if IS_MODULE else [Path(os.path.relpath(p)) for p in workflow.overwrite_configfiles]
if not (FILES or IS_MODULE or "study" in CHANGES):
    FILES = [Path(name) for name in [globals().get("DEFAULT_STUDY")] if name]


try:
    values, GRID = study()
    RESULTS = GRID.results
    planned.check_access(Path(RESULTS))
    AGAIN = set(PLAN.again if PLAN else [])
    if not IN_JOB:
        OUTPUTS = planned.Outputs(Path(RESULTS), planned.groups(GRID.runs))
        FORCED = planned.forced(sys.argv[1:], OUTPUTS, GRID.runs)
        AGAIN = planned.again(OUTPUTS, FORCED, GRID.runs)
except UserError as error:
    sys.exit(f"error: {error}")
except PermissionError as error:
    sys.exit(f"error: {planned.refused(Path(error.filename).parent)}")

config.clear()
config.update(values)
STUDY = GRID.study
if not IN_JOB:
    of_study.say_changes(GRID, config)
    record = of_study.record(config, FILES, CHANGES, OVERRIDES)
    update_text(Path(RESULTS, "asked.json"), record)
    PLANNED = planned.new_path(Path(RESULTS))
    os.environ[rank.PLAN] = str(PLANNED)


# On a workstation as many jobs run as it has GPUs, and they share its cores. A job on Slurm has four.
try:
    CORES = workflow.cores
    GPUS = [] if IN_JOB else gpus.available()
except WorkflowError:  # no --cores: jobs are submitted, or none is run
    CORES, GPUS = 4, []
GPU_CORES = max(1, CORES // len(GPUS)) if GPUS else 4

RUNS = Runs(GRID, AGAIN, IN_JOB, GPU_CORES)
DEVICES = Devices(GRID, RUNS)
SHARDS = Shards(GRID)
if not IN_JOB:
    SHARDS.ask()
EVALUATIONS = Evaluations(GRID, RUNS)
SWEEPS = Sweeps(GRID)
FIGURES = of_study.Figures(GRID)
RECORDS = of_study.records(RUNS, EVALUATIONS, SWEEPS)

# Jobs find the Python that runs this workflow, whether or not its environment is activated. An
# environment of conda and a container have a Python of their own with what this package needs, and
# read the package through a link: PYTHONPATH must not name a folder that holds other packages too.
if not IN_JOB:
    LINK = Path(".snakemake", "lmscaling", digest({"to": str(registry.PACKAGE)}), "lmscaling")
    if not LINK.is_symlink():
        LINK.parent.mkdir(parents=True, exist_ok=True)
        LINK.symlink_to(registry.PACKAGE)
    places = {"PYTHONPATH": [LINK.parent.absolute()]}
    if not IS_MODULE:  # the jobs of other rules stay as they are
        places["PATH"] = [RULES / "bin", Path(sys.executable).parent]
    for name, folders in places.items():
        before = os.environ.get(name)
        os.environ[name] = os.pathsep.join([*map(str, folders), *([before] if before else [])])


envvars:
    rank.PLAN,
    "PYTHONPATH",


# Inputs of what exists are no reason to make it again: neither that they are newer, nor that they
# will be made anew, nor that they are gone. `ancient` alone would do where they stay as they are;
# of an input that is made anew, Snakemake would forget the job that was asked for.
def settled(ask, output, exists=lambda wildcards: True):
    def asked(wildcards):
        found = ask(wildcards)
        path = os.path.join(RESULTS, output.format(wildcards=wildcards))
        if not found or not os.path.exists(path) or not exists(wildcards):
            return found
        paths = [found] if isinstance(found, str) else found
        return [ancient(before_update(path)) for path in paths if os.path.exists(path)]

    return asked


def recorded(wildcards):
    return f"{RESULTS}/study.json"  # the rule that makes it writes the cells and the sweeps, too


onstart:
    stamps = OUTPUTS.records
    planned.write(PLANNED, planned.Plan(FOLDER, dict(config), stamps, sorted(AGAIN)))


# To Snakemake a run that ended as oom or diverged is a success. A user wants to hear of it, too.
onsuccess:
    OUTPUTS.note()
    failures.last_words(Path(RESULTS), GRID)


onerror:
    OUTPUTS.note()
    failures.last_words(Path(RESULTS), GRID)
