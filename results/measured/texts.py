"""Makes the text of ``config/law.yaml``, JSON lines, from packages of the package index.

    python results/measured/texts.py    # texts/python.train.jsonl and texts/python.validation.jsonl

pip downloads the packages, whose SHA-256 is given below. A document is a file with Python source;
two per cent of them, chosen by a hash of the content, are validation text.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HELD_OUT = 0.02
WHEELS = {
    "django-5.2.8": "37e687f7bd73ddf043e2b6b97cfe02fcbb11f2dbb3adccc6a2b18c6daa054d7f",
    "docutils-0.22.3": "bd772e4aca73aff037958d44f2be5229ded4c09927fcf8690c577b66234d6ceb",
    "networkx-3.5": "0030d386a9a06dee3565298b4a734b68589749a544acbb6c412dc9e2489ec6ec",
    "pylint-4.0.3": "896d09afb0e78bbf2e030cd1f3d8dc92771a51f7e46828cbc3948a89cd03433a",
    "sphinx-8.2.3": "4405915165f13521d875a8c29c8970800a0141c14cc5416a38feca4ea5d9b9c3",
    "twisted-25.5.0": "8559f654d01a54a8c3efe66d533d43f383531ebf8d81d9f9ab4769d91ca15df7",
}


def download(package: str, folder: Path) -> Path:
    """The wheel of a package; pip refuses another content."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{package.replace('-', '==')} --hash=sha256:{WHEELS[package]}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    options = ["--only-binary", ":all:", "--dest", str(folder), "--requirement", str(wanted)]
    subprocess.run([*pip, *options], check=True)
    return next(folder.glob("*.whl"))


def documents(wheel: Path) -> Iterator[str]:
    """The sources of a wheel, by name."""
    with zipfile.ZipFile(wheel) as opened:
        for name in sorted(opened.namelist()):
            text = opened.read(name).decode("utf-8", "replace") if name.endswith(".py") else ""
            if text and not text.isspace():
                yield text


def is_held_out(text: str) -> bool:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < int(HELD_OUT * 2**64)


def main(folder: str = "texts") -> None:
    lines: dict[bool, list[str]] = {False: [], True: []}
    for package in WHEELS:
        with tempfile.TemporaryDirectory() as temporary:
            for text in documents(download(package, Path(temporary))):
                lines[is_held_out(text)].append(json.dumps({"text": text}) + "\n")
    Path(folder).mkdir(exist_ok=True)
    for held_out, split in ((False, "train"), (True, "validation")):
        Path(folder, f"python.{split}.jsonl").write_text("".join(lines[held_out]))


if __name__ == "__main__":
    main(*sys.argv[1:])
