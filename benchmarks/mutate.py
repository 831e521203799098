"""Mutation testing: does a test fail when a line of the source is wrong?

A seeded sample of places in the source is changed, one place at a time, by the operators of
cosmic-ray. The tests of the changed module's subject must then fail. ``docs/mutation.md`` has the
score and explains how to run this.

A process that has imported PyTorch, DuckDB and pytest, but nothing of this project, forks for each
mutant; so a mutant costs its tests and not the seconds of those imports. Each of the processes at
work has a copy of the repository, because tests start ``python -m lmscaling`` themselves.

First every test runs without a mutant, and the functions that it calls are noted. A change within
a function is tried against the tests that call this function in their own process, any other change
against all tests of the subject.
"""

import argparse
import ast
import difflib
import gc
import hashlib
import importlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from mutants import mutations
from mutation_worker import Worker

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".mutation" / "results.jsonl"
LEAST_SHARE = 0.85
"""Share of the sample that must be killed."""
MOST_SECONDS = 60
"""Of tests of a mutant, noting calls, which more than doubles their time."""
WARM = ("torch", "duckdb", "pandas", "scipy.optimize", "pyarrow.parquet",
        "pydantic.dataclasses", "safetensors.torch", "yaml", "psutil", "matplotlib.pyplot",
        "seaborn", "jinja2", "xxhash", "tiktoken", "transformers")  # fmt: skip
"""What most tests import, apart from the project itself."""
SUBJECTS = {
    "config": "config grid study text_needs estimate",
    "config/sweeps": "sweep study",
    "config/speed": "sweep config study",
    "config/datasets": "config study fetch data",
    "config/devices": "plan estimate",
    "config/budget": "config train",
    "config/calibration": "estimate calibrate",
    "config/lr_law": "rates config",
    "config/kinds": "kinds sweep",
    "config/schedule": "schedule estimate plan",
    "config/schedules": "schedule",
    "plan": "estimate study_plan text_needs jobs plan",
    "model": "optimizer model exchange",
    "train": "train branch resume",
    "train/branch": "branch",
    "train/calibrate": "calibrate",
    "train/checkpoint": "checkpoint branch resume",
    "train/clock": "clock",
    "train/ledger": "ledger branch resume",
    "train/norms": "norms",
    "fits": "loss_surface laws",
    "fits/context_law": "optima laws",
    "fits/crossing": "crossing",
    "fits/fieller": "fieller",
    "fits/final_loss": "final_loss",
    "fits/gaps": "gaps",
    "fits/inference": "loss_surface",
    "fits/isotime": "optima laws",
    "fits/log_sum_exp": "newton loss_surface",
    "fits/lr_law": "rates",
    "fits/lr_optimum": "fits rates",
    "fits/multiplier": "multiplier laws",
    "fits/newton": "newton loss_surface",
    "fits/noise": "noise",
    "fits/optimum": "optima",
    "fits/paired_losses": "optima",
    "fits/points": "laws",
    "fits/power_law": "power_law laws",
    "fits/student": "loss_surface",
    "fits/uncertainty": "uncertainty noise optima",
    "store": "schema store published",
    "store/spikes": "spikes",
}
"""Test files of each package, or of one module of it, quick and particular ones first."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    line: int
    operator: str
    occurrence: int
    before: str
    after: str
    source: str
    """The complete text of the changed file."""


def sample(n: int, seed: int, part: str) -> Iterator[Mutant]:
    """Up to n mutants, each at another place, in a random order that the seed alone determines.

    Args:
        n: Size of the sample.
        seed: Seed of the order.
        part: A package or a module to sample from, such as ``fits``; empty for all packages.
    """
    places = {}
    for package in sorted({name.partition("/")[0] for name in SUBJECTS}):
        for path in sorted((ROOT / "src" / "lmscaling" / package).rglob("*.py")):
            if not str(path.relative_to(ROOT / "src" / "lmscaling")).startswith(part):
                continue
            tree = get_ast(path.read_text())
            for place, mutation in mutations(list(ast_nodes(tree))):
                places.setdefault((path, place), []).append(mutation)
    generator = random.Random(seed)
    order = generator.sample(sorted(places), len(places))
    print(f"{len(places)} places in {len({path for path, _ in order})} files", flush=True)
    for path, place in order:
        if n == 0:
            return
        text = path.read_text()
        operator, occurrence = generator.choice(places[path, place])
        source = mutate_code(text, operator, occurrence)
        if source is None or not differs(text, source):
            continue
        n -= 1
        yield Mutant(
            str(path.relative_to(ROOT)), place[0], type(operator).__name__, occurrence,
            *changed_lines(text, source), source,
        )  # fmt: skip


def differs(text: str, source: str) -> bool:
    """Whether Python reads the two sources as different programs."""
    try:
        return ast.dump(ast.parse(text)) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def changed_lines(text: str, source: str) -> tuple[str, str]:
    """The first line that differs, before and after."""
    lines = list(difflib.ndiff(text.splitlines(), source.splitlines()))
    before, after = (next((x[2:].strip() for x in lines if x[0] == s), "") for s in "-+")
    return before, after


def tests_of(path: str) -> list[str]:
    """Test files of a source file, by its own entry or that of the next folder above."""
    name = str(Path(path).relative_to("src/lmscaling").with_suffix(""))
    while name not in SUBJECTS:
        name = str(Path(name).parent)
    return [f"tests/test_{stem}.py" for stem in SUBJECTS[name].split()]


def chosen_tests(mutant: Mutant, passing: dict[str, dict[str, Any]]) -> tuple[list[str], float]:
    """Tests that a mutant is tried against, and the seconds that they take without it.

    The quick ones come first. Those that begin after ``MOST_SECONDS`` are left out, because each
    survivor costs all of them and they kill few mutants more.

    Args:
        mutant: The mutant.
        passing: By test file, the seconds and the calls of its tests.
    """
    function = function_around(ROOT / mutant.path, mutant.line)
    name = f"{mutant.path.removeprefix('src/lmscaling/')}:{function}"
    files = []
    for file in tests_of(mutant.path):
        seconds, calls = passing[file]["seconds"], passing[file]["calls"]
        everyone = function is None or name in calls.get("", [])
        tests = [test for test in seconds if everyone or name in calls.get(test, [])]
        files.append((sum(map(seconds.get, tests)), sorted((seconds[t], t) for t in tests)))
    chosen, total = [], 0.0
    for taken, test in (one for _, tests in sorted(files) for one in tests):
        if total < MOST_SECONDS:
            chosen.append(test)
            total += taken
    return chosen, total


def function_around(path: Path, line: int) -> int | None:
    """First line of the innermost function whose body holds a line; None outside of functions."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    if not functions:
        return None
    inner = max(functions, key=lambda node: node.lineno)
    return min([inner.lineno, *(decorator.lineno for decorator in inner.decorator_list)])


class Ledger:
    """Results of earlier runs; those whose source and tests have not changed count again."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self.path = path
        lines = path.read_text().splitlines() if path.is_file() else []
        self.known = {row["key"]: row for row in map(json.loads, lines)}

    def key(self, mutant: Mutant | None, tests: list[str]) -> str:
        """A name for a changed source.

        The key of no mutant contains all sources: it says that the tests pass without a change.
        """
        if mutant:
            return digest(mutant.path, mutant.source)
        sources = sorted((ROOT / "src").rglob("*.py"))
        return digest(*tests, *(path.read_text() for path in sources))

    def find(self, key: str, tests: list[str]) -> dict[str, Any] | None:
        """The known result of a key, unless a test that it rests on has changed."""
        row = self.known.get(key)
        return row if row and row["evidence"] == evidence(row, tests) else None

    def add(self, row: dict[str, Any], tests: list[str]) -> None:
        """Keep a result of these tests."""
        row["evidence"] = evidence(row, tests)
        self.known[row["key"]] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def evidence(row: dict[str, Any], tests: list[str]) -> str:
    """A name for what a result rests on: the test that killed, else all tests that did not."""
    file, _, test = row["test"].partition("::")
    if test:
        return digest(text_of("tests/conftest.py"), text_of(file, test.partition("[")[0]))
    files = sorted({test.partition("::")[0] for test in tests} | {"tests/conftest.py"})
    return digest(*map(text_of, files))


@cache
def content(file: str) -> str:
    """A test file as it is when it is first asked for: workers have copies from the beginning."""
    return (ROOT / file).read_text()


def text_of(file: str, test: str | None = None) -> str:
    """A test file without its imports and, if a test is named, without its other tests."""
    body = ast.parse(content(file)).body
    kept = [
        node
        for node in body
        if not isinstance(node, ast.Import | ast.ImportFrom)
        and not (
            test
            and isinstance(node, ast.FunctionDef)
            and node.name.startswith("test_")
            and node.name != test
        )
    ]
    return ast.unparse(ast.Module(kept, []))


def work(jobs: list[tuple[Mutant | None, list[str], float]], workers: list[Worker],
         ledger: Ledger) -> list[dict[str, Any]]:  # fmt: skip
    """Results of all jobs, in their order; what the ledger knows is not tried again."""
    keys = [ledger.key(mutant, tests) for mutant, tests, _ in jobs]
    waiting = {
        key: job for key, job in zip(keys, jobs, strict=True) if not ledger.find(key, job[1])
    }
    print(f"{len(jobs)} to try, {len(jobs) - len(waiting)} of them known", flush=True)
    todo, busy = list(waiting.items()), {}
    for key, (mutant, tests, _) in waiting.items():
        if mutant and not tests:
            row = asdict(mutant) | {"source": "", "key": key, "outcome": "survived"}
            ledger.add(row | {"seconds": 0.0, "test": ""}, tests)
            todo = [(k, job) for k, job in todo if k != key]
    while todo or busy:
        for worker in workers:
            if worker not in busy and todo:
                key, job = todo.pop(0)
                busy[worker] = key
                worker.start(*job)
        time.sleep(0.05)
        for worker, key in list(busy.items()):
            if ended := worker.ended():
                outcome, seconds, test = ended
                mutant, tests = worker.job
                row = asdict(mutant) if mutant else {"tests": tests}
                row.pop("source", None)
                row |= {"key": key, "outcome": outcome, "seconds": seconds, "test": test}
                if mutant is None and outcome == "survived":
                    row |= json.loads(worker.calls.read_text())
                    row["outcome"] = "passed"
                ledger.add(row, tests)
                del busy[worker]
                where = f"{row['path']}:{row['line']}" if mutant else " ".join(tests)
                print(f"{row['outcome']:8} {seconds:6} s  {where}  {test}", flush=True)
    return [ledger.known[key] for key in keys]


def report(rows: list[dict[str, Any]]) -> float:
    """Print the score and a Markdown table of the survivors; returns the share killed."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        package = row["path"].split("/")[2]
        counts.setdefault(package, [0, 0])[row["outcome"] == "survived"] += 1
    print("\n| package | mutants | killed |\n| --- | ---: | ---: |")
    for package, (killed, survived) in sorted(counts.items()):
        print(f"| {package} | {killed + survived} | {killed / (killed + survived):.0%} |")
    killed = sum(row["outcome"] != "survived" for row in rows)
    late = sum(row["outcome"] == "timeout" for row in rows)
    share = killed / len(rows)
    print(f"\n{killed} of {len(rows)} killed ({share:.1%}), {late} by their time limit")
    print("\n| survivor | before | after |\n| --- | --- | --- |")
    for row in sorted(rows, key=lambda row: (row["path"], row["line"])):
        if row["outcome"] == "survived":
            place = row["path"].removeprefix("src/lmscaling/")
            before, after = (row[side].replace("|", "\\|") for side in ("before", "after"))
            print(f"| {place}:{row['line']} | `{before}` | `{after}` |")
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="size of the sample")
    parser.add_argument("--seed", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="a package or module, such as fits")
    args = parser.parse_args()
    mutants = list(sample(args.mutants, args.seed, args.only))
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    ledger = Ledger(RESULTS)
    files = sorted({test for mutant in mutants for test in tests_of(mutant.path)})
    for file in ("tests/conftest.py", *files):
        content(file)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        workers = [Worker(Path(folder) / str(i)) for i in range(args.jobs)]
        passed = work([(None, [file], 1800.0) for file in files], workers, ledger)
        broken = [row["tests"][0] for row in passed if row["outcome"] != "passed"]
        if broken:
            sys.exit(f"these tests fail without a mutant: {' '.join(broken)}")
        by_file = {row["tests"][0]: row for row in passed}
        jobs = []
        for mutant in mutants:
            tests, seconds = chosen_tests(mutant, by_file)
            jobs.append((mutant, tests, 30 + 4 * seconds))
        share = report(work(jobs, workers, ledger))
    gc.unfreeze()
    if share < LEAST_SHARE:
        sys.exit(f"{share:.1%} of the mutants were killed; at least {LEAST_SHARE:.0%} must be")


if __name__ == "__main__":
    main()
