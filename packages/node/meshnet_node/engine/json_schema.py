"""JSON schemas as clients send them, made fit for the converter: bounded, plain, every reference resolved.

llama-cpp-python's converter asserts, indexes and recurses through whatever it is given, complains about its own
insides, takes two references of one name for the same thing, and looks at one keyword of a part and forgets the others.
So a schema is looked through first: each part
becomes a reference, alternatives, some values, or one type with what is said of that type. What a schema asks for and
cannot have is refused in words that say what to do.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from meshnet_node.engine.json_pattern import FORMAT_PATTERNS, RULE_CHARS_MAX, string_rule
from meshnet_node.engine.number_grammar import Limit, integer_rule, number_rule
from meshnet_node.engine.schema_keywords import LIMITS, OF_TYPE, TYPES, both, followed, listed, not_followed, shown
from meshnet_node.errors import GrammarError, NothingFollowsError

SCHEMA_DEPTH_MAX = 60
SCHEMA_PARTS_MAX = 1000
"""Properties, items and alternatives, all together; each becomes two or three rules of a grammar."""
OPTIONAL_PROPERTIES_MAX = 256
"""Of one object. An answer may leave out any of them, and each possibility is kept an eye on."""
REPETITIONS_MAX = 20_000
"""Of characters or items; more than most contexts hold."""
LIMIT_DIGITS_MAX = 30
"""Of a number's limits, before and behind the decimal point."""

Schema = dict[str, Any]
_ANY: Schema = {"anyOf": [{"type": name} for name in TYPES if name != "integer"]}
_ALTERNATIVES = ("anyOf", "oneOf")


class SchemaReader:
    """One schema. ``plain`` is what the converter gets; its references are names in ``references``.

    A plain part is ``{"$ref": name}``, or has ``anyOf``, ``enum``, ``grammar`` (the body of a rule), or one ``type``
    beside what is said of values of that type.
    """

    def __init__(self, schema: Mapping[str, Any], name: str) -> None:
        """``name`` begins the names of its references. Raises GrammarError."""
        self.references: dict[str, Schema] = {}
        self._schema = schema
        self._name = name
        self._names: dict[str, str] = {}
        self._part_count = 0
        self._rule_chars = 0
        self.plain = self._plain(schema, SCHEMA_DEPTH_MAX)
        while pending := [pointer for pointer, known in self._names.items() if known not in self.references]:
            for pointer in pending:
                self.references[self._names[pointer]] = self._plain(self._target(pointer), SCHEMA_DEPTH_MAX)

    def _plain(self, schema: Any, depth: int) -> Schema:
        self._count_part()
        part = self._sole_part(schema, depth)
        if part.keys() == {"$ref"}:
            return {"$ref": self._name_of(part["$ref"])}
        part = self._merged(part, depth)
        for key in _ALTERNATIVES:
            if key in part:
                choices = _of_kind(part, key, list, "an array")
                if not choices:
                    raise GrammarError(f"the JSON schema has an empty '{key}'; leave it out")
                rest = {keyword: value for keyword, value in part.items() if keyword != key}
                return self._either([{"allOf": [rest, choice]} if rest else choice for choice in choices], depth - 1)
        if "enum" in part:
            return {"enum": _values(part)}
        kinds = _kinds(part)
        if len(kinds) == 1:
            return self._of_type(kinds[0], part, depth - 1)
        return {"anyOf": [self._of_type(kind, part, depth - 1) for kind in kinds]}

    def _either(self, choices: list[Any], depth: int) -> Schema:
        """Of alternatives, those that are some."""
        possible: list[Schema] = []
        problem: NothingFollowsError | None = None
        for choice in choices:
            try:
                possible.append(self._plain(choice, depth))
            except NothingFollowsError as error:
                problem = error
        if problem is not None and not possible:
            raise problem
        return {"anyOf": possible}

    def _count_part(self, count: int = 1) -> None:
        self._part_count += count
        if self._part_count > SCHEMA_PARTS_MAX:
            raise GrammarError(
                f"the JSON schema has more than {SCHEMA_PARTS_MAX} properties, items and alternatives; make it smaller"
            )

    def _sole_part(self, schema: Any, depth: int) -> Schema:
        """What shapes the answer; an 'allOf' of one part is that part."""
        part = self._followed(schema, depth)
        while part.keys() == {"allOf"} and isinstance(part["allOf"], list) and len(part["allOf"]) == 1:
            depth -= 1
            part = self._followed(part["allOf"][0], depth)
        return part

    def _followed(self, schema: Any, depth: int) -> Schema:
        if depth <= 0:
            raise GrammarError(f"the JSON schema nests more than {SCHEMA_DEPTH_MAX} levels; make it flatter")
        if schema is True:
            return {}
        if schema is False:
            raise NothingFollowsError(
                "the JSON schema has false where some value must be possible; leave that part out"
            )
        if not isinstance(schema, Mapping):
            raise GrammarError(f"the JSON schema has {shown(schema)} where a schema must be")
        return followed(schema)

    def _merged(self, part: Schema, depth: int) -> Schema:
        """One part of all that must hold at once: its own words, those of 'allOf', and those that '$ref' leads to."""
        merged = {keyword: value for keyword, value in part.items() if keyword not in ("$ref", "allOf")}
        others = [] if "$ref" not in part else [self._look_up(part["$ref"])]
        if "allOf" in part:
            others += _of_kind(part, "allOf", list, "an array")
        for other in others:
            self._count_part()
            merged = both(merged, self._merged(self._followed(other, depth), depth - 1))
            # Merged again and again, so that it would take the square of their number.
            for many in (merged.get("properties"), merged.get("required")):
                if isinstance(many, Mapping | list) and len(many) > SCHEMA_PARTS_MAX:
                    self._count_part(SCHEMA_PARTS_MAX)
        return merged

    def _of_type(self, kind: str, part: Mapping[str, Any], depth: int) -> Schema:
        said = {keyword: part[keyword] for keyword in OF_TYPE[kind] if keyword in part}
        match kind:
            case "object":
                return self._object(said, depth)
            case "array":
                return self._array(said, depth)
            case "string":
                return self._string(said)
            case "integer" | "number" if said:
                return self._ruled(_number_body(kind, said))
        return {"type": kind}

    def _object(self, said: Schema, depth: int) -> Schema:
        named = dict(_of_kind(said, "properties", Mapping, "an object")) if "properties" in said else {}
        required = _of_kind(said, "required", list, "an array") if "required" in said else []
        names = dict.fromkeys(name for name in required if isinstance(name, str))
        additional = said.get("additionalProperties")
        for name in names:
            if named.setdefault(name, True if additional is None else additional) is False:
                raise NothingFollowsError(f"the JSON schema requires the property {shown(name)}, and forbids it")
        possible = {name: part for name, part in named.items() if part is not False}
        _check_optional_count(len(possible) - len(names))
        if not named and "properties" not in said and additional in (None, True):
            return {"type": "object"}
        plain: Schema = {"type": "object", "required": set(names), "additionalProperties": False}
        plain["properties"] = {name: self._plain(part, depth) for name, part in possible.items()}
        if additional is not None and additional is not False:
            plain["additionalProperties"] = self._plain(additional, depth)
        return plain

    def _array(self, said: Schema, depth: int) -> Schema:
        """``prefixItems`` are all there: an answer may have fewer, and is asked for the usual."""
        low, high = _counts(said, "minItems", "maxItems")
        first = _of_kind(said, "prefixItems", list, "an array") if "prefixItems" in said else []
        items = said.get("items", not first)
        if items is False:
            high = len(first) if high is None else min(high, len(first))
        if high is not None:
            first = first[:high]
        if high is not None and low > high:
            raise GrammarError(f"the JSON schema has an array of at least {low} items, and of at most {high}")
        if items is True and not first and low == 0 and high is None:
            return {"type": "array"}
        if not first and high == 0:
            items = True
        plain: Schema = {"type": "array", "first": [self._plain(part, depth) for part in first]}
        plain |= {"minItems": max(0, low - len(first)), "maxItems": None if high is None else high - len(first)}
        return plain | {"items": self._plain(True if items is False else items, depth)}

    def _string(self, said: Schema) -> Schema:
        low, high = _counts(said, "minLength", "maxLength")
        is_counted = low > 0 or high is not None
        if "pattern" in said:
            if is_counted:
                raise GrammarError(
                    "the JSON schema has a 'pattern' beside 'minLength' or 'maxLength'; write the length into the "
                    "pattern, as in '^[a-z]{2,5}$'"
                )
            return self._ruled(string_rule(_of_kind(said, "pattern", str, "a string")))
        if is_counted:
            return {"type": "string", "minLength": low, "maxLength": high}
        form = said.get("format")
        if form in FORMAT_PATTERNS:
            return self._ruled(string_rule(FORMAT_PATTERNS[form]))
        return {"type": "string"} | ({"format": form} if isinstance(form, str) else {})

    def _ruled(self, body: str) -> Schema:
        self._rule_chars += len(body)
        if self._rule_chars > RULE_CHARS_MAX:
            raise GrammarError(
                "the JSON schema's patterns and limits make too large a grammar; make them fewer or shorter"
            )
        return {"grammar": body}

    def _name_of(self, pointer: Any) -> str:
        """A reference's name for the converter, the same for the same part; what it stands for is read later."""
        _check_pointer(pointer)
        return self._names.setdefault(pointer, f"{self._name}ref{len(self._names)}")

    def _target(self, pointer: str) -> Any:
        """What the pointer leads to, through pointers that lead to others."""
        passed = {pointer}
        while True:
            target = self._look_up(pointer)
            part = self._sole_part(target, SCHEMA_DEPTH_MAX)
            if part.keys() != {"$ref"}:
                return target
            pointer = part["$ref"]
            _check_pointer(pointer)
            if pointer in passed:
                raise GrammarError(f"the JSON schema refers to {shown(pointer)}, which leads back to itself")
            passed.add(pointer)

    def _look_up(self, pointer: Any) -> Any:
        _check_pointer(pointer)
        target: Any = self._schema
        for step in pointer[1:].split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isascii() and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, Mapping) and key in target:
                target = target[key]
            else:
                raise GrammarError(f"the JSON schema refers to {shown(pointer)}, which is not in it")
        if pointer != "#" and not pointer.startswith("#/"):
            raise GrammarError(f"the JSON schema refers to {shown(pointer)}; write such a reference as '#/$defs/NAME'")
        return target


def _check_pointer(pointer: Any) -> None:
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        raise GrammarError(
            f"the JSON schema refers to {shown(pointer)}: references must stay inside it, as '#/$defs/NAME' does; "
            "nothing is fetched"
        )


def _kinds(part: Mapping[str, Any]) -> list[str]:
    """The types an answer may have, as the schema says, or as what it says of them gives away."""
    if "type" not in part:
        spoken_of = [kind for kind in TYPES if kind != "integer" and set(OF_TYPE[kind]) & part.keys()]
        if len(spoken_of) > 1:
            raise GrammarError(f"the JSON schema has a part with {shown(sorted(part))} and no type; give it a 'type'")
        return spoken_of or [kind for kind in TYPES if kind != "integer"]
    kinds = listed(part["type"])
    for kind in kinds or [kinds]:
        if kind not in TYPES:
            raise GrammarError(f"the JSON schema has the type {shown(kind)}; there are {', '.join(TYPES)}")
    return list(dict.fromkeys(kinds))


def _values(part: Mapping[str, Any]) -> list[Any]:
    """Those of an enumeration that follow what else is said of them."""
    values = _of_kind(part, "enum", list, "an array")
    if not values:
        raise GrammarError("the JSON schema has an empty 'enum'; leave it out")
    kinds = _kinds(part) if "type" in part else TYPES
    kept = [value for value in values if any(_is_of_type(value, kind) for kind in kinds) and _follows(value, part)]
    if not kept:
        raise NothingFollowsError(f"the JSON schema has the 'enum' {shown(values)}, of which no value may be")
    return kept


def _follows(value: Any, part: Mapping[str, Any]) -> bool:
    kind = next(kind for kind in TYPES if _is_of_type(value, kind))
    said = {keyword: part[keyword] for keyword in OF_TYPE[kind] if keyword in part and keyword != "format"}
    if kind in ("integer", "number"):
        step = said.pop("multipleOf", None)
        divisor = Decimal(0) if step is None else _limit_value("multipleOf", step)
        if divisor and Decimal(repr(value)) % divisor:
            return False
        low, high = _limits(said)
        return (low is None or low.lets_above(value)) and (high is None or high.lets_below(value))
    if said.keys() <= {"minLength", "maxLength"}:
        low_count, high_count = _counts(said, "minLength", "maxLength")
        return not said or low_count <= len(value) <= (len(value) if high_count is None else high_count)
    raise GrammarError(
        f"the JSON schema has {', '.join(sorted(said))} beside the values of an 'enum'; list those that may be, alone"
    )


def _is_of_type(value: Any, kind: str) -> bool:
    match value:
        case bool():
            return kind == "boolean"
        case int() | float():
            return kind == "number" or (kind == "integer" and value == int(value))
        case None:
            return kind == "null"
        case str():
            return kind == "string"
    return kind == ("array" if isinstance(value, list) else "object")


def _number_body(kind: str, said: Mapping[str, Any]) -> str:
    is_whole = kind == "integer" or "multipleOf" in said  # which is 1, or refused
    body = (integer_rule if is_whole else number_rule)(*_limits(said))
    if body is None:
        asked = ", ".join(f"'{keyword}' {said[keyword]}" for keyword in LIMITS if keyword in said)
        raise NothingFollowsError(f"the JSON schema has {asked}, and no {kind} is between")
    return body


def _limits(said: Mapping[str, Any]) -> tuple[Limit | None, Limit | None]:
    step = said.get("multipleOf", 1)
    if isinstance(step, bool) or step != 1:
        raise not_followed("multipleOf")
    values = {keyword: _limit_value(keyword, said[keyword]) for keyword in LIMITS if keyword in said}
    lows = [Limit(values[key], key != "minimum") for key in ("minimum", "exclusiveMinimum") if key in values]
    highs = [Limit(values[key], key != "maximum") for key in ("maximum", "exclusiveMaximum") if key in values]
    low = max(lows, key=lambda limit: (limit.value, limit.is_open), default=None)
    return low, min(highs, key=lambda limit: (limit.value, not limit.is_open), default=None)


def _limit_value(keyword: str, value: Any) -> Decimal:
    """As it was written: 0.1, and not the float nearest to it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GrammarError(f"the JSON schema has {shown(value)} as '{keyword}'; it must be a number")
    limit = Decimal(repr(value))
    exponent = limit.as_tuple().exponent
    assert isinstance(exponent, int)
    if limit.adjusted() >= LIMIT_DIGITS_MAX or -exponent > LIMIT_DIGITS_MAX:
        raise GrammarError(
            f"the JSON schema has '{keyword}' {shown(value)}; use at most {LIMIT_DIGITS_MAX} digits before and behind "
            "the point, or leave it out"
        )
    return limit


def _counts(said: Mapping[str, Any], low_name: str, high_name: str) -> tuple[int, int | None]:
    low, high = said.get(low_name, 0), said.get(high_name)
    for name, count in ((low_name, low), (high_name, 0 if high is None else high)):
        is_whole = isinstance(count, int | float) and not isinstance(count, bool) and count == int(count)
        if not is_whole or not 0 <= count <= REPETITIONS_MAX:
            raise GrammarError(
                f"the JSON schema has '{name}' {shown(count)}; use 0 to {REPETITIONS_MAX}, or leave it out"
            )
    if high is not None and low > high:
        raise GrammarError(f"the JSON schema has '{low_name}' {low} above '{high_name}' {high}")
    return int(low), None if high is None else int(high)


def _check_optional_count(count: int) -> None:
    if count > OPTIONAL_PROPERTIES_MAX:
        raise GrammarError(
            f"the JSON schema has an object with {count} optional properties; at most {OPTIONAL_PROPERTIES_MAX} can "
            "be: name the others in 'required', or leave them out"
        )


def _of_kind(part: Mapping[str, Any], key: str, kind: type, description: str) -> Any:
    if not isinstance(part[key], kind):
        raise GrammarError(f"the JSON schema has {shown(part[key])} as '{key}'; it must be {description}")
    return part[key]
