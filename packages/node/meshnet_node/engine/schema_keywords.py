"""Which words of a JSON schema shape an answer, and what two schemas ask for together.

Of each keyword one thing is true: it is followed; or it is an annotation, as all words are that the standard does not
know, and is dropped; or it cannot be followed, and the schema is refused in words, unless it asks for nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from meshnet_node.errors import GrammarError, NothingFollowsError

COMPARISONS_MAX = 100_000
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
OF_TYPE: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": LIMITS,
    "integer": LIMITS,
    "boolean": (),
    "null": (),
}
"""What each says about values of this type; of those of another it says nothing."""
_FOLLOWED = {"$ref", "type", "enum", "anyOf", "oneOf", "allOf"}.union(*OF_TYPE.values())

# What each of these may say without asking for anything.
_NOT_FOLLOWED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("not", "if", "then", "else", "contains", "$dynamicRef", "$recursiveRef"), lambda value: False),
    **dict.fromkeys(("uniqueItems", "minProperties"), lambda value: not value),
    "maxProperties": lambda value: False,
    **dict.fromkeys(
        ("patternProperties", "dependencies", "dependentRequired", "dependentSchemas"), lambda value: value == {}
    ),
    "propertyNames": lambda value: value in (True, {}, {"type": "string"}),
    "unevaluatedItems": lambda value: value in (True, {}),
}
_ANY_NAME = ("", ".*", "^.*$", "^(.*)$")
"""As makers of schemas write "whatever its name"."""
_INSTEAD = {
    "not": "say what is wanted, with 'enum' or 'anyOf'",
    "if": "write the cases out, with 'anyOf'",
    "multipleOf": "leave it out, or list the numbers in an 'enum'",
    "minProperties": "name the properties in 'required'",
    "patternProperties": "use 'additionalProperties'",
}


def followed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema's keywords that shape an answer. Raises GrammarError if one of the others asks for something."""
    schema = _modern(schema)
    for keyword, asks_nothing in _NOT_FOLLOWED.items():
        if keyword in schema and not asks_nothing(schema[keyword]):
            raise not_followed(keyword)
    return {keyword: value for keyword, value in schema.items() if keyword in _FOLLOWED}


def not_followed(keyword: str) -> GrammarError:
    advice = _INSTEAD.get(keyword, "leave it out and check the answer yourself")
    return GrammarError(f"the JSON schema has '{keyword}', which an answer cannot be held to here; {advice}")


def both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What follows both schemas, of each of which only what is followed is left. Raises GrammarError."""
    merged = {**one, **other}
    for keyword in one.keys() & other.keys():
        if one[keyword] != other[keyword]:
            merged[keyword] = _both_values(keyword, one[keyword], other[keyword])
    if "properties" in one or "properties" in other:
        names = dict.fromkeys([*_properties(one), *_properties(other)])
        merged["properties"] = {name: _both_parts(_property(one, name), _property(other, name)) for name in names}
    return merged


def _both_values(keyword: str, one: Any, other: Any) -> Any:
    match keyword:
        case "type":
            return _both_types(listed(one), listed(other))
        case "enum" if isinstance(one, list) and isinstance(other, list):
            if len(one) * len(other) > COMPARISONS_MAX:
                raise GrammarError("the JSON schema has two long 'enum' for one part; say it once")
            if not (common := [value for value in one if value in other]):
                raise NothingFollowsError(f"the JSON schema asks for one of {shown(one)} and of {shown(other)} at once")
            return common
        case "required" if isinstance(one, list) and isinstance(other, list):
            return [*one, *other]
        case "minimum" | "exclusiveMinimum" | "minItems" | "minLength" if _are_numbers(one, other):
            return max(one, other)
        case "maximum" | "exclusiveMaximum" | "maxItems" | "maxLength" if _are_numbers(one, other):
            return min(one, other)
        case "items" | "additionalProperties":
            return _both_parts(one, other)
        case "properties":
            return None  # each by its name, in ``both``
    raise GrammarError(
        f"the JSON schema asks for two different things by '{keyword}' of one part ('allOf', or beside '$ref', 'anyOf' "
        "or 'oneOf'); say it once"
    )


def _both_types(one: list[Any], other: list[Any]) -> list[Any]:
    if len(one) > len(TYPES) or len(other) > len(TYPES):
        raise GrammarError(f"the JSON schema has more than {len(TYPES)} types of one part; there are no more")
    wider = {"integer": "number"}
    kept = [kind for kind in one if kind in other or wider.get(kind) in other]
    kept += [kind for kind in other if kind not in kept and wider.get(kind) in one]
    if not kept:
        raise NothingFollowsError(
            f"the JSON schema asks for the types {one} and {other} of one part; it can have one only"
        )
    return kept


def _both_parts(one: Any, other: Any) -> Any:
    """As a schema of its own, which is looked into when it is its turn."""
    if one is False or other is False:
        return False
    parts = [part for part in (one, other) if part is not True]
    return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else True


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    named = schema.get("properties", {})
    if not isinstance(named, Mapping):
        raise GrammarError(f"the JSON schema has {shown(named)} as 'properties'; it must be an object")
    return named


def _property(schema: Mapping[str, Any], name: str) -> Any:
    named = _properties(schema)
    return named[name] if name in named else schema.get("additionalProperties", True)


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _modern(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Older words, and such as mean the same here, in those that are followed."""
    kept = dict(schema)
    if isinstance(kept.get("items"), list):
        kept["prefixItems"] = kept.pop("items")
        if "additionalItems" in kept:
            kept["items"] = kept["additionalItems"]
    by_pattern = kept.get("patternProperties")
    if isinstance(by_pattern, Mapping) and len(by_pattern) == 1 and "properties" not in kept:
        ((pattern, part),) = by_pattern.items()
        if pattern in _ANY_NAME:
            del kept["patternProperties"]
            kept["additionalProperties"] = part
    if "unevaluatedProperties" in kept:
        kept.setdefault("additionalProperties", kept["unevaluatedProperties"])
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    least, names = kept.get("minProperties"), kept.get("required")
    if isinstance(least, int) and isinstance(names, list) and least <= len(names):
        del kept["minProperties"]
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(kept.get(exclusive), bool) and kept.pop(exclusive) and limit in kept:  # up to draft 4
            kept[exclusive] = kept.pop(limit)
    return kept
