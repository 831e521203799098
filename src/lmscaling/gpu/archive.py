"""The records of a device: lines of ``records.jsonl``, and one file to carry them elsewhere."""

import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

from lmscaling.bench import sweep
from lmscaling.bench.isolation import Ended
from lmscaling.config import grid, sweeps
from lmscaling.errors import UserError
from lmscaling.files import new_file, parse_json, write_json, write_text
from lmscaling.gpu.jobs import Lines, fault_of, key_of
from lmscaling.records.run import FORMAT

MEASURED = Path("results/measured")
"""Each device has a folder there."""

SETUP = ("torch", "triton", "ptxas")
"""Programs whose version may change a time or a result."""

SUFFIXES, LEFT_OUT = {".json", ".jsonl", ".txt"}, {"tokens", "cells"}
"""Of what is packed: neither weights nor tokens."""

COPIED = re.compile(r"(runs/\w[\w.,=+-]*/(run\.json|log\.jsonl)|checks/\w[\w.,=+-]*\.json)")


def path(folder: Path) -> Path:
    """The archive in a folder."""
    return folder / "lmscaling-gpu.zip"


def read(records: Path) -> Lines:
    """The lines of ``records.jsonl`` by their key; a last one that a kill has cut is removed."""
    if not records.is_file():
        return {}
    whole, newline, rest = records.read_bytes().rpartition(b"\n")
    if rest:
        write_text(records, (whole + newline).decode())
    return _lines(whole, records)


def _lines(content: bytes, where: Path) -> Lines:
    return {line["key"]: line for line in (parse_json(x, str(where)) for x in content.splitlines())}


def said(line: dict[str, Any]) -> str:
    """What a line says, for people."""
    if line["status"] != "done":
        return f"{line['status']}: {line['message']}"
    if "message" in (value := line["value"]):
        return value["message"] or "right"
    if "median_seconds" in value:
        return f"{1e3 * value['median_seconds']:.4g} ms"
    return ", ".join(f"{name} {x}" for name, x in value.items())


def require_same(first: dict[str, Any], here: dict[str, Any], study: Any, out: Path) -> None:
    """Refuse records of another device, other versions or another study."""
    then, now = (
        ", ".join([of["device"], *(f"{p} {of['versions'].get(p, 'none')}" for p in SETUP)])
        for of in (first["environment"], here)
    )
    if then != now:
        raise UserError(f"{out} has records of {then} and this is {now}; give --out another folder")
    if first["study"] != study:
        raise UserError(f"{out} has records of another study; give --out another folder")


def pack(out: Path, folder: Path) -> None:
    """Replace the archive in a folder by one of what is in ``out``."""
    with new_file(path(folder)) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as file:
        for each in sorted(out.rglob("*")):
            name = each.relative_to(out)
            if each.suffix in SUFFIXES and name.parts[0] not in LEFT_OUT:
                file.write(each, name.as_posix())


def unpack(archive: Path, out: Path | None) -> str:
    """Write the records of an archive into ``results/measured/<device>``, or into ``out``.

    What did not pass its check gets the status ``wrong`` and no time.

    Raises:
        UserError: There is no such file, it is damaged or of another version, or the folder has
            other records.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            names = [name for name in file.namelist() if COPIED.fullmatch(name)]
            files = {name: file.read(name).decode() for name in ("records.jsonl", *names)}
    except OSError as error:
        raise UserError(f"{archive}: {error.strerror}; correct its path") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        raise UserError(f"{archive} is damaged ({error}); copy it again") from error
    lines = _lines(files["records.jsonl"].encode(), archive)
    first = lines.get("device", {})
    if first.get("format") != FORMAT:
        raise UserError(
            f"{archive} has format {first.get('format')} and this version reads {FORMAT}; type "
            "lmscaling gpu --import with the version that wrote it"
        )
    here, values = first["environment"], first["study"]
    planned = sweeps.expand(grid.expand(values).study).values()
    folder = re.sub(r"[^a-z0-9]+", "-", here["device"].lower()).strip("-")
    out = out or MEASURED / folder
    known = read(out / "records.jsonl")
    if out.is_dir() and any(out.iterdir()) and known.get("device") != first:
        raise UserError(f"{out} has other records; give --out another folder")
    for name, text in files.items():
        write_text(out / name, text)
    for one in planned:
        for point in one.points:
            if line := lines.get(key_of(one, point)):
                ended = Ended(line["status"], line["message"], line["value"])
                if wrong := fault_of(point, lines):
                    ended = Ended("wrong", wrong, None)
                file = out / "speed" / one.folder / f"{point.name}.json"
                write_json(file, sweep.record_of(one, point, ended, line["started"], here))
    write_json(out / "study.json", {"command": "lmscaling gpu", "study": values})
    return f"gpu: {len(lines) - 1} records are in {out}; type make figures"
