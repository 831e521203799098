"""Reports a refused value in one sentence: location, value found, allowed values, nearest one.

Pydantic reports each error with a location. The keys and values allowed there are read from the
JSON schema of the same class, so they cannot differ from what is checked.
"""

import re
from functools import cache
from itertools import takewhile
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lmscaling.config.places import Values, place_of
from lmscaling.errors import UserError, choose, shown

T = TypeVar("T")

ALTERNATIVE = re.compile(r"constrained-|(dict|list|literal|function-\w+)\[")
"""What pydantic inserts into a location for the alternatives of a union."""
Schema = dict[str, Any]

UNKNOWN_KEY = "unexpected_keyword_argument"

KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
"""Types of a JSON schema in words."""
BOUNDS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "exclusiveMaximum": "below",
}


def checked(kind: type[T], values: Any, where: str) -> T:
    """``values`` as an instance of the dataclass ``kind``.

    Raises:
        UserError: The first error, in one sentence that starts with ``where``, or with the place
            in a study file.
    """
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        # A misspelt key causes the error about the missing key, so it is reported first.
        errors = sorted(error.errors(), key=lambda e: e["type"] != UNKNOWN_KEY)
        first = _nearest(errors)
        if isinstance(values, Values):
            is_key = first["type"] == UNKNOWN_KEY or "[key]" in first["loc"]
            where = place_of(values, first["loc"], is_key)
        sentence = " ".join(_sentence(first, _schema(kind)).split())
        raise UserError(f"{where}: {sentence}") from None


@cache
def _schema(kind: Any) -> Schema:
    return TypeAdapter(kind).json_schema()


def _nearest(errors: list[Any]) -> Any:
    """The first error; of a field with alternatives, that of the one which fits best."""
    field = _field(errors[0])
    return max((e for e in errors if _field(e) == field), key=lambda e: len(e["loc"]))


def _field(error: Any) -> tuple[Any, ...]:
    """The location as far as the first alternative of a union."""
    return tuple(takewhile(lambda part: not ALTERNATIVE.match(str(part)), error["loc"]))


def _sentence(error: Any, schema: Schema) -> str:
    location = [part for part in error["loc"] if not ALTERNATIVE.match(str(part))]
    *parents, key = location or ("",)
    place = ".".join(str(part) for part in location)
    found, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case kind if kind == UNKNOWN_KEY:
            parent = ".".join(str(part) for part in parents)
            unknown = f"unknown key {key!r}" + (f" in {parent}" if parent else "")
            return f"{unknown}; {choose(key, _node(schema, parents).get('properties', {}))}"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"{place} is missing"
        case "union_tag_invalid":
            kinds = _node(schema, error["loc"])["discriminator"]["mapping"]
            return f"{place}.kind is {context['tag']!r}; {choose(context['tag'], kinds)}"
        case "union_tag_not_found":
            return f"{place}.kind is missing"
        case "value_error":
            return f"{place}: {context['error']}" if place else str(context["error"])
        case "literal_error":
            node = _node(schema, error["loc"])
            names = node["enum"] if "enum" in node else [node["const"]]
            return f"{place} is {shown(found)}; {choose(found, names)}"
        case "dataclass_type" | "dict_type" | "model_attributes_type":
            return f"{place} is {shown(found)}; allowed: keys with values"
        case "list_type":
            return f"{place} is {shown(found)}; allowed: a list, such as [{found}]"
        case "string_type":
            return f"{place} is {shown(found)}; allowed: text"
        case "too_short":
            return f"{place} is {shown(found)}; allowed: at least one value"
        case _ if numbers := _numbers(_node(schema, error["loc"]), found):
            return f"{place} is {shown(found)}; {numbers}"
        case _:
            return f"{place} is {shown(found)}; {error['msg'][0].lower()}{error['msg'][1:]}"


def _numbers(node: Schema, found: Any) -> str:
    """What is allowed for a number or a boolean, and which is nearest; empty for another type."""
    if node.get("type") not in KINDS:
        return ""
    bounds = [f"{word} {_text(node[key])}" for key, word in BOUNDS.items() if key in node]
    allowed = " ".join([f"allowed: {KINDS[node['type']]}", *bounds])
    if isinstance(found, int | float) and not isinstance(found, bool):
        nearest = min(max(found, node.get("minimum", found)), node.get("maximum", found))
        if nearest != found:
            return f"{allowed}; nearest is {_text(nearest)}"
    return allowed


def _text(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) and number < 10**10 else f"{number:g}"


def _node(schema: Schema, path: Any) -> Schema:
    """The part of a schema at the end of a path of keys, indices and kinds."""
    nodes = _options(schema, schema)
    for part in path:
        nodes = [inner for node in nodes for inner in _options(_child(node, part), schema)]
    return next(iter(nodes), {})


def _child(node: Schema, part: Any) -> Schema:
    if kind := node.get("discriminator", {}).get("mapping", {}).get(part):
        return {"$ref": kind}
    inner = node.get("items") or node.get("additionalProperties") or {}
    return node.get("properties", {}).get(part, inner)


def _options(node: Schema, schema: Schema) -> list[Schema]:
    """A node, or the alternatives to null that it allows, with references resolved."""
    if "$ref" in node:
        return _options(schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], schema)
    if "anyOf" in node:
        return [found for option in node["anyOf"] for found in _options(option, schema)]
    return [node] if node and node.get("type") != "null" else []
