"""Mutation testing: does a test fail when a line of the source is wrong?

A random sample of places in the source is changed, one place at a time, by the operators of
cosmic-ray. A test must then fail. CONTRIBUTING.md has the scores.

First the quick tests run without a mutant, in a copy of the repository whose functions note that
they are called. Then each mutant is tried against the tests that call its function, the quick ones
first. A process that has imported PyTorch and pytest, but nothing of this project, forks for each
mutant, which so does not cost the seconds of those imports.
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
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from mutants import mutations
from mutation_worker import PACKAGE, ROOT, Batch, Worker, functions

LEAST_SHARE = 0.8
"""Share of the sample that must be killed."""
LEAST_PLACES = 3
"""Of each package in a sample, at least."""
MOST_SECONDS = 25.0
"""CPU seconds of tests of a mutant: each survivor costs all of them."""
FIRST_SECONDS = 2.0
"""CPU seconds of the tests that run first, so that the files of the others are seldom imported."""
FILE_SECONDS = 0.1
"""CPU seconds to import a test file."""
WARM = ("torch", "duckdb", "pandas", "scipy.optimize", "pyarrow.parquet",
        "pydantic.dataclasses", "safetensors.torch", "yaml", "psutil", "matplotlib.pyplot",
        "seaborn", "jinja2", "xxhash", "tiktoken", "transformers")  # fmt: skip
"""What most tests import, apart from the project itself."""


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


def package(path: str | Path) -> str:
    """Name of the package of a source file; modules of the top count as one."""
    parts = Path(path).relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "lmscaling"


def sample(n: int, seed: int, part: str) -> Iterator[Mutant]:
    """Mutants at up to n places in a random order that seed and sources determine.

    Args:
        n: Size of the sample.
        seed: Seed of the order.
        part: A package or a module to sample from, such as ``fits``; empty for all packages.
    """
    places = defaultdict(list)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if str(path.relative_to(ROOT / PACKAGE)).startswith(part):
            for place, mutation in mutations(list(ast_nodes(get_ast(path.read_text())))):
                places[str(path.relative_to(ROOT)), place].append(mutation)
    generator = random.Random(seed)
    order = generator.sample(sorted(places), len(places))
    print(f"{len(places)} places in {len({path for path, _ in order})} files", flush=True)
    sizes = Counter(package(path) for path, _ in order)
    missing = {name: min(LEAST_PLACES, size) for name, size in sizes.items()}
    for path, place in order:
        name, text = package(path), (ROOT / path).read_text()
        if n <= sum(missing.values()) and not missing[name]:
            continue  # what is left belongs to packages that have too few
        operator, occurrence = generator.choice(places[path, place])
        if n and (change := changed(text, operator, occurrence)):
            n -= 1
            missing[name] = max(0, missing[name] - 1)
            yield Mutant(path, place[0], type(operator).__name__, occurrence, *change)


def changed(text: str, operator: Any, occurrence: int) -> tuple[str, str, str] | None:
    """The first changed line before and after, and the text; None if Python sees no change."""
    try:
        source = mutate_code(text, operator, occurrence) or text
        if ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
            return None
    except (AttributeError, SyntaxError):  # cosmic-ray knows no ``except module.Error``
        return None
    lines = list(difflib.ndiff(text.splitlines(), source.splitlines()))
    before, after = (next((x[2:].strip() for x in lines if x[0] == s), "") for s in "-+")
    return before, after, source


def imported(path: Path) -> set[str]:
    """Source files that a file imports, as ``fits/student.py``."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    stems = [n.partition(".")[2].replace(".", "/") for n in names if n.startswith("lmscaling")]
    files = [f"{stem}.py" for stem in stems] + [f"{stem}/__init__.py".lstrip("/") for stem in stems]
    return {file for file in files if (ROOT / PACKAGE / file).is_file()}


class Evidence:
    """Which tests a mutant is tried against.

    Args:
        summaries: What ``Notes.summary`` says of each test file.
    """

    def __init__(self, summaries: dict[str, Any]) -> None:
        self.tests = {t: row for s in summaries.values() for t, row in s["tests"].items()}
        self.at_import = {name for s in summaries.values() for name in s["imports"]}
        self.callers: dict[str, set[str]] = defaultdict(set)
        for test, (_, _, called) in self.tests.items():
            for name in called:
                self.callers[name].add(test)
                self.callers[name.partition(":")[0]].add(test)
        sources = (ROOT / PACKAGE).rglob("*.py")
        self.imports = {str(p.relative_to(ROOT / PACKAGE)): imported(p) for p in sources}
        self.test_imports = {file: imported(ROOT / file) for file in summaries}

    def candidates(self, mutant: Mutant) -> list[set[str]]:
        """Tests that may notice a mutant; those of the second set less likely.

        In a function: those that call it. In a module, or in a function that is called while files
        are imported: those that call any function of the module or whose file imports it, then
        those that call a function of a module that imports it.
        """
        module = str(Path(mutant.path).relative_to(PACKAGE))
        found = functions(ast.parse((ROOT / mutant.path).read_text()))
        around = [f.lineno for f in found if f.lineno <= mutant.line <= (f.end_lineno or 0)]
        function = f"{module}:{around[-1]}" if around else ""
        if function and function not in self.at_import:
            return [self.callers[function]]
        named = {t for t in self.tests if module in self.test_imports[t.partition("::")[0]]}
        users = [user for user, modules in self.imports.items() if module in modules]
        near = self.callers[module] | named
        return [near, set().union(*(self.callers[user] for user in users)) - near]

    def batches(self, mutant: Mutant) -> list[Batch]:
        """The tests of a mutant that run first, and the others, each with their CPU seconds."""
        parts: list[list[tuple[str, float]]] = [[], []]
        paid, total = set(), 0.0
        for tests in self.candidates(mutant):
            whole = {t: self.tests[t][0] + sum(self.tests[t][1].values()) for t in tests}
            for test in sorted(tests, key=lambda t: (whole[t], t)):
                file, (cost, fixtures, _) = test.partition("::")[0], self.tests[test]
                for name, seconds in [*fixtures.items(), ("", FILE_SECONDS)]:
                    cost += 0 if (file, name) in paid else seconds
                if total and total + cost > MOST_SECONDS:
                    break
                paid |= {(file, name) for name in [*fixtures, ""]}
                total += cost
                parts[total > FIRST_SECONDS and bool(parts[0])].append((test, cost))
        return [(by_file(part), sum(cost for _, cost in part)) for part in parts if part]


def by_file(tests: list[tuple[str, float]]) -> list[str]:
    """Tests, those of a file together because they share fixtures, quick files first."""
    files: dict[str, float] = defaultdict(float)
    for test, cost in tests:
        files[test.partition("::")[0]] += cost
    return sorted((t for t, _ in tests), key=lambda t: (files[t.partition("::")[0]], t))


def work(jobs: list[Any], workers: list[Worker], ignored: bool = False) -> Iterator[Any]:
    """Does jobs, each the arguments of ``Worker.start``; yields job, worker and what ended."""
    todo, busy = list(jobs), {}
    while todo or busy:
        for worker in workers:
            if worker not in busy and todo:
                busy[worker] = todo.pop(0)
                worker.start(*busy[worker])
        time.sleep(0.05)
        for worker in list(busy):
            if ended := worker.ended(ignored):
                yield busy.pop(worker), worker, ended


def kept(path: Path) -> list[Any]:
    """What an earlier run wrote into a file of one JSON value a line."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def traced(workers: list[Worker], log: Path) -> dict[str, Any]:
    """What the tests of each file call; files that the log has are not run again."""
    found = dict(kept(log))
    names = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").glob("test_*.py"))
    jobs = [(None, [([name], 360.0)]) for name in names if name not in found]
    for worker in workers if jobs else []:
        worker.note(True)
    for (_, [([name], _)]), worker, (_, seconds, first) in work(jobs, workers):
        failed = [first or name]
        if worker.summary.is_file():  # else the process did not reach its end
            found[name] = summary = json.loads(worker.summary.read_text())
            print(json.dumps((name, summary)), file=log.open("a"))
            failed = [] if summary["code"] in (0, 5) else summary["failed"] or failed
        print(f"{seconds:6} s  {name}", flush=True)
        for test in failed:
            print(f"left out, for it fails without a mutant: {test}", flush=True)
    for worker in workers if jobs else []:
        worker.note(False)
    return found


def report(rows: list[dict[str, Any]]) -> float:
    """Print the score and a Markdown table of the survivors; returns the share killed."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for name in (package(row["path"]), "all"):
            counts[name].update([row["outcome"], "mutants"])
    print("\n| package | mutants | killed | no quick test |\n| --- | ---: | ---: | ---: |")
    for name, count in sorted(counts.items(), key=lambda item: (item[0] == "all", item[0])):
        count["killed"] += count["timeout"]
        print(f"| {name} | {count['mutants']} | {count['killed']} | {count['untested']} |")
    killed, late = counts["all"]["killed"], counts["all"]["timeout"]
    print(f"\n{killed} of {len(rows)} killed ({killed / len(rows):.1%}), {late} by a time limit")
    print("\n| survivor | before | after | tests tried |\n| --- | --- | --- | ---: |")
    for row in sorted(rows, key=lambda row: (row["outcome"], row["path"], row["line"])):
        if row["outcome"] in ("survived", "untested"):
            place = row["path"].removeprefix(f"{PACKAGE}/")
            before, after = (row[side].replace("|", "\\|") for side in ("before", "after"))
            print(f"| {place}:{row['line']} | `{before}` | `{after}` | {row['of'] or 'none'} |")
    return killed / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=150, help="size of the sample")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="a package or module, such as fits")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    sources = [p for d in ("src", "tests") for p in sorted((ROOT / d).rglob("*.py"))]
    tree = hashlib.sha256(b"\0".join(p.read_bytes() for p in sources)).hexdigest()[:12]
    mutants = list(sample(args.mutants, args.seed, args.only))
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    log = ROOT / ".mutation" / tree
    log.parent.mkdir(exist_ok=True)
    known = {(row["path"], row["operator"], row["occurrence"]): row for row in kept(log)}
    rows, jobs = [], []
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        workers = [Worker(Path(folder) / str(i)) for i in range(args.jobs)]
        summaries = traced(workers, log.with_suffix(".calls"))
        evidence = Evidence(summaries)
        unknown = any(s["code"] == 1 and not s["failed"] for s in summaries.values())
        for mutant in mutants:
            row = known.get((mutant.path, mutant.operator, mutant.occurrence))
            if not row and (batches := evidence.batches(mutant)):
                jobs.append((mutant, batches))
            else:
                rows.append(row or asdict(mutant) | {"outcome": "untested", "seconds": 0, "of": ""})
        print(f"{len(jobs)} of {len(mutants)} to try", flush=True)
        for (mutant, batches), _, (outcome, seconds, test) in work(jobs, workers, unknown):
            row = asdict(mutant) | {"outcome": outcome, "seconds": seconds, "test": test}
            tried = sum(len(tests) for tests, _ in batches)
            row["of"] = f"{tried} of {sum(map(len, evidence.candidates(mutant)))}"
            rows.append(row)
            print(json.dumps(row | {"source": ""}), file=log.open("a"))
            print(f"{outcome:8} {seconds:6} s  {mutant.path}:{mutant.line}  {test}", flush=True)
    print(f"{sum(row['seconds'] for row in rows):.0f} CPU seconds for mutants")
    gc.unfreeze()  # else DuckDB's binding lists what it thinks has leaked
    if (share := report(rows)) < LEAST_SHARE:
        sys.exit(f"{share:.1%} of the mutants were killed; at least {LEAST_SHARE:.0%} must be")


if __name__ == "__main__":
    main()
