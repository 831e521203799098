"""A refused value in one sentence: where it stands, what was found, what is allowed, the nearest.

Pydantic reports errors as records with a location; the keys allowed at that location are read
from the JSON schema of the same class, so they can never differ from what is checked.
"""

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lmscaling.errors import UserError, choose

T = TypeVar("T")


def checked(kind: type[T], values: Any, where: str) -> T:
    """``values`` as an instance of the dataclass ``kind``.

    Raises:
        UserError: The first thing that is wrong, in one sentence that starts with ``where``.
    """
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        # A misspelt key is the cause of a missing one, so it is told first.
        errors = sorted(error.errors(), key=lambda e: e["type"] != "unexpected_keyword_argument")
        sentence = _sentence(errors[0], TypeAdapter(kind).json_schema())
        raise UserError(f"{where}: {sentence}") from None


def _sentence(error: Any, schema: dict[str, Any]) -> str:
    *parents, key = error["loc"] or ("",)
    place = ".".join(str(part) for part in error["loc"])
    found, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "unexpected_keyword_argument":
            outer = (
                f"unknown key {key!r} in {_join(parents)}" if parents else f"unknown key {key!r}"
            )
            return f"{outer}; {choose(key, _keys(schema, parents))}"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"{place} is missing"
        case "union_tag_invalid":
            tags = context["expected_tags"].replace("'", "").split(", ")
            return f"{place}.kind is {context['tag']!r}; {choose(context['tag'], tags)}"
        case "union_tag_not_found":
            return f"{place}.kind is missing"
        case "value_error":
            return f"{place}: {context['error']}" if place else str(context["error"])
        case "literal_error":
            names = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            return f"{place} is {found!r}; {choose(found, names)}"
        case "dataclass_type" | "dict_type" | "model_attributes_type":
            return f"{place} is {found!r}; allowed: keys with values"
        case _:
            return f"{place} is {found!r}; {error['msg'][0].lower()}{error['msg'][1:]}"


def _join(parts: list[Any]) -> str:
    return ".".join(str(part) for part in parts)


def _keys(schema: dict[str, Any], parents: list[Any]) -> list[str]:
    """Keys that the schema allows at the end of a path."""
    node = schema
    for part in parents:
        node = _resolve(node, schema)
        if part in node.get("properties", {}):
            node = node["properties"][part]
        elif part in node.get("discriminator", {}).get("mapping", {}):
            node = {"$ref": node["discriminator"]["mapping"][part]}
        else:
            node = node.get("items") or node.get("additionalProperties") or {}
    return list(_resolve(node, schema).get("properties", {}))


def _resolve(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node or "anyOf" in node:  # an optional section is one of a section and null
        if "anyOf" in node:
            node = node["anyOf"][0]
        else:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return node
