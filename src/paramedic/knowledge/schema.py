"""Checks a value against the part of JSON Schema that our own schemas use; a test holds it equal to jsonschema."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def problems(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Yields one sentence for each way in which `value` breaks `schema`; nothing when it keeps it."""
    kinds = schema.get("type")
    if kinds and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        yield f"{where or 'it'}: expected {kinds}, got {type(value).__name__}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {', '.join(map(repr, schema['enum']))}"
    if isinstance(value, str):
        yield from _string(value, schema, where)
    elif isinstance(value, dict):
        yield from _object(value, schema, where)
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{where}: needs at least {schema['minItems']} item(s)"
        for index, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{where}[{index}]")
    elif _is(value, "number"):
        if (
            isinstance(value, float)
            and math.isnan(value)
            and not schema.keys().isdisjoint(("maximum", "minimum", "exclusiveMinimum"))
        ):
            yield f"{where}: NaN is in no range"
        if "maximum" in schema and value > schema["maximum"]:
            yield f"{where}: {value} is above {schema['maximum']}"
        if "minimum" in schema and value < schema["minimum"]:
            yield f"{where}: {value} is below {schema['minimum']}"
        if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
            yield f"{where}: {value} is not above {schema['exclusiveMinimum']}"


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _string(value: str, schema: dict[str, Any], where: str) -> Iterator[str]:
    if len(value) < schema.get("minLength", 0):
        yield f"{where}: {value!r} is shorter than {schema['minLength']} characters"
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{where}: longer than {schema['maxLength']} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where}: {value!r} does not look like {schema['pattern']}"


def _object(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    known = schema.get("properties", {})
    prefix = f"{where}." if where else ""
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{prefix}{key}: missing"
    if len(value) < schema.get("minProperties", 0):
        yield f"{where}: is empty"
    extra = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in known:
            yield from problems(item, known[key], prefix + key)
        elif extra is False:
            yield f"{prefix}{key}: unknown key"
        elif isinstance(extra, dict):
            yield from problems(item, extra, prefix + key)
