"""Any damage of a study file is refused in a sentence, or leaves what the stated rules allow."""

import json
import random
import re
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

import pytest
import yaml
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_study_files import STUDY, changed, place, plan

from lmscaling.errors import UserError

__all__ = ["place"]

# The rules of config/limits.md, read by other code than that which checks them.


def stated() -> list[tuple[str, Decimal, Decimal, bool]]:
    """Patterns of keys with the least and the largest value, and whether these are excluded."""
    rows = []
    for line in (ROOT / "config" / "limits.md").read_text().splitlines():
        if line.startswith("| `"):
            keys, low, high, _ = (part.strip() for part in line.strip("|").split("|"))
            is_open = low.startswith(">")
            least, most = (Decimal(each.lstrip("<> ").replace(",", "")) for each in (low, high))
            rows += [(key, least, most, is_open) for key in re.findall("`([^`]+)`", keys)]
    return rows


NO_NUMBERS = re.compile(
    r"study|datasets\.\w+\.(kind|train\.\d+|train|validation\.\d+|repository|revision|text|mirror|"
    r"shuffle|packages|validation)|tokenizers\.\w+\.(encoding|file|sha256)|dataset|"
    r"tokenizer|.*\.(attention|size|datasets|reason)(\.\d+)?|position|documents|schedule(\.kind)?|"
    r"calibrate(\.size)?|speed\.\w+\.(\d\.)?(sizes|implementations|attentions|passes)\.\d+|"
    r"speed\.\w+\.\d+\.name|published|baseline|match|budget"
)
NUMBER = re.compile(r"[-+]?(0|[1-9][0-9_]*)?(\.[0-9_]*)?([eE][-+]?[0-9]+)?")


class Independent(yaml.BaseLoader):
    """Reads every value as text, and refuses a key that is given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [x for key, each in value.items() for x in leaves(each, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [x for i, each in enumerate(value) for x in leaves(each, f"{path}.{i}")]
    return [(path, value)]


def illegal(data: bytes, rules: Any) -> list[str]:
    """What of an accepted study file breaks a stated rule."""
    values = yaml.load(data.decode("utf-8-sig"), Loader=Independent)
    found = []
    for path, text in leaves(values):
        rule = [each for each in rules if fnmatchcase(path, each[0])]
        if text in ("", "null", "~", "Null", "NULL") or NO_NUMBERS.fullmatch(path):
            continue
        if not rule:
            found.append(f"{path}: {text} has no rule")
        elif not (text and NUMBER.fullmatch(text)):
            found += [f"{path}: {text}"]
        else:
            number, (_, low, high, is_open) = Decimal(text.replace("_", "")), rule[0]
            if not low <= number <= high or (is_open and number in (low, high)):
                found.append(f"{path}: {text} is not from {low} to {high}")
    budget, unit = values["budget"].split()
    updates = Decimal(budget) / (int(values["update_tokens"]) if unit.startswith("tok") else 1)
    optimizer = values["optimizer"] or {}
    warm_up = Decimal(optimizer.get("warmup_updates") or 700)
    if unit[:3] in ("upd", "tok") and (updates < 1 or warm_up > updates):
        found.append(f"budget {values['budget']} and warm-up {warm_up}")
    first, second = optimizer.get("betas") or (0, 1)
    if Decimal(first) > Decimal(second):
        found.append("betas")
    return found


NUMBERS = (
    "0 -1 1 2 3 7 16 010 0o10 0x1F 0b1 1:30 1:30.5 1_000 1e3 1E-3 1.0e+3 1e309 -1e309 1e-300 "
    ".inf -.inf .nan nan inf Infinity 1e12 1000000000000 9999999999999999999999999 1.0e+15 1e30 "
    "0.5 1.5 -0.0 .5 5. 2026-01-01 2026-13-45"
)
TEXTS = (
    'true false yes no on off null ~ - ? : = << {} [] [[]] {a:1} !x *a &a | > % \'x\' "1" "1e3" '
    '\'ü\' \'😀\' "a\\0b" "\\ud800" "\\x07" {shard} {shard:09999999999d} {0..99999999999} all '
    "inherit softmax linear c4 README.md published a/b ../.. /dev/null /etc/passwd a*.x"
)
PHRASES = """
{a: 1}|[1, 1]|[0.1, true]|!!set {a}|!!int x|!!binary AAA=|&a [*a]|{all: 1}|1 token|1 updates|
9e99 tokens|1e9 hours|1e-9 seconds|24 hours|0 updates|{a: {b: {c: 1}}}|[16, 16]|a b|a, b|{x: y
""".replace("\n", "").split("|")
LONG = "x" * 300, "9" * 5000, "[" * 100, "[" * 100 + "]" * 100, ""
VALUES = (*NUMBERS.split(), *TEXTS.split(), *PHRASES, *LONG)
SCALAR = re.compile(rb"(?<=: )[^\s,{}\[\]][^,{}\[\]\n]*|(?<=[\[ ])[\w./+-]+(?=[,\]])")


def mutated(chance: random.Random) -> bytes:
    """The study with one to three changes."""
    data = STUDY.encode()
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        lines = data.split(b"\n")
        i, j = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(12):
            case 0:
                lines.insert(j, lines[i])
            case 1:
                del lines[i]
            case 2:
                lines[i], lines[j] = lines[j], lines[i]
            case 3:
                lines[i] = b" " * chance.randrange(4) + lines[i].lstrip()
            case 4:
                lines = lines[: max(1, i)]
            case 5:
                k = chance.randrange(len(data) or 1)
                lines = (data[:k] + bytes([chance.randrange(256)]) + data[k + 1 :]).split(b"\n")
            case 6:
                lines[i] += chance.choice((b" x", b" #", b":", b"\t", b" ,", b"}", b"\r"))
            case _:
                if found := list(SCALAR.finditer(data)):
                    at = chance.choice(found)
                    value = chance.choice(VALUES).encode()
                    lines = (data[: at.start()] + value + data[at.end() :]).split(b"\n")
        data = b"\n".join(lines)
    return data


@pytest.mark.parametrize("value", ["1e9", "true", "010", "[1]", "-1", "x"])
def test_the_stated_rules_are_read(value):
    assert illegal(changed("eps: 1.0e-8", f"eps: {value}").encode(), stated())
    assert not illegal(STUDY.encode(), stated())


def bounded() -> list[tuple[str, str]]:
    """Keys of the study with a number, each with a value below and above its stated bounds."""
    found = []
    for path, text in leaves(yaml.load(STUDY, Loader=Independent)):
        rule = [each for each in stated() if fnmatchcase(path, each[0])]
        if rule and NUMBER.fullmatch(text) and not NO_NUMBERS.fullmatch(path):
            _, low, high, is_open = rule[0]
            away = 1 if text.isdigit() else abs(low / 100)
            above = high + 1 if text.isdigit() else high * Decimal("1.01")
            beyond = (low, high) if is_open else (low - (away or 1), above)
            found += [(path, str(int(x) if x == int(x) else float(x))) for x in beyond]
    return found


@pytest.mark.parametrize(("path", "value"), bounded())
def test_a_number_beyond_its_stated_bounds_is_refused(path, value):
    values = yaml.safe_load(STUDY)
    *parents, key = (int(part) if part.isdigit() else part for part in path.split("."))
    inner = values
    for parent in parents:
        inner = inner[parent]
    inner[key] = json.loads(value)
    with pytest.raises(UserError, match=str(key)):
        plan(yaml.safe_dump(values, sort_keys=False))


PLACE = re.compile(r"(study file )?study\.yaml(:\d+:\d+)?[: ]")


def check(data: bytes) -> None:
    """It is refused in one sentence that begins with its place, or it is legal."""
    try:
        plan(data)
    except UserError as error:
        said = str(error)
        assert PLACE.match(said), said
        assert "\n" not in said
        assert len(said) < 1000
    else:
        assert not illegal(data, stated())


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.randoms(use_true_random=False))
def test_damage_anywhere_is_refused_in_a_sentence_or_legal_by_the_stated_rules(chance):
    check(mutated(chance))
