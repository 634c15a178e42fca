"""JSON schemas as clients send them, made fit for the converter: bounded, plain, every reference resolved.

llama-cpp-python's converter asserts, indexes and recurses through whatever it is given, complains about its own
insides, takes two references of one name for the same thing, and knows no more of a regular expression than
llama.cpp's grammars do. So a schema is looked through first; what it asks for and cannot have is refused in words
that say what to do.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from meshnet_node.errors import GrammarError

SCHEMA_DEPTH_MAX = 60
SCHEMA_PARTS_MAX = 1000
"""Properties, items and alternatives, all together; each becomes two or three rules of a grammar."""
OPTIONAL_PROPERTIES_MAX = 256
"""Of one object. The converter recurses once for each."""
REPETITIONS_MAX = 20_000
"""Of characters or items; more than most contexts hold."""

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_ANY_TYPE: dict[str, Any] = {"anyOf": [{"type": name} for name in _TYPES if name != "integer"]}
_DROPPED = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$defs", "definitions"}
    | {"$schema", "$id", "$comment", "$anchor"}
)
_SHAPES = frozenset(
    {"type", "const", "enum", "anyOf", "oneOf", "allOf", "properties", "items", "prefixItems", "pattern"}
)
_ONLY_OF = {"additionalProperties": "object", "required": "object", "format": "string", "maxLength": "string"}
"""What a part without a type must be, if it has one of these."""
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_COUNTS = (("minLength", "maxLength"), ("minItems", "maxItems"))


class SchemaReader:
    """One schema. ``plain`` is what the converter gets; its references are names in ``references``."""

    def __init__(self, schema: Mapping[str, Any], name: str, check_pattern: Callable[[str], None]) -> None:
        """``name`` begins the names of its references. ``check_pattern`` raises GrammarError, as this does."""
        self.references: dict[str, dict[str, Any]] = {}
        self._schema = schema
        self._name = name
        self._check_pattern = check_pattern
        self._names: dict[str, str] = {}
        self._part_count = 0
        self.plain = self._plain(schema, SCHEMA_DEPTH_MAX)
        while pending := [pointer for pointer, known in self._names.items() if known not in self.references]:
            for pointer in pending:
                self.references[self._names[pointer]] = self._plain(self._target(pointer), SCHEMA_DEPTH_MAX)

    def _plain(self, schema: Any, depth: int) -> dict[str, Any]:
        """The schema without annotations, and with "anything" spelled out: the converter knows neither."""
        self._part_count += 1
        if self._part_count > SCHEMA_PARTS_MAX:
            raise GrammarError(
                f"the JSON schema has more than {SCHEMA_PARTS_MAX} properties, items and alternatives; make it smaller"
            )
        if depth == 0:
            raise GrammarError(f"the JSON schema nests more than {SCHEMA_DEPTH_MAX} levels; make it flatter")
        if schema is True:
            return _ANY_TYPE
        if not isinstance(schema, Mapping):
            raise GrammarError(f"the JSON schema has {_shown(schema)} where a schema must be")
        kept = {key: value for key, value in schema.items() if key not in _DROPPED}
        if not kept:
            return _ANY_TYPE
        if "$ref" in kept:
            return {"$ref": self._name_of(kept["$ref"])}
        return self._with_plain_parts(_typed(kept), depth - 1)

    def _with_plain_parts(self, kept: dict[str, Any], depth: int) -> dict[str, Any]:
        if "properties" in kept:
            properties = _of_kind(kept, "properties", Mapping, "an object")
            listed = _of_kind(kept, "required", list, "an array") if "required" in kept else []
            required = {name for name in listed if isinstance(name, str)}
            _check_optional_count(sum(name not in required for name in properties))
            kept["required"] = required
            kept["properties"] = {name: self._plain(part, depth) for name, part in properties.items()}
        for key in (*_ALTERNATIVES, "prefixItems"):
            if key in kept:
                parts = _of_kind(kept, key, list, "an array")
                kept[key] = [self._plain(part, depth) for part in parts]
                if not parts:
                    raise GrammarError(f"the JSON schema has an empty '{key}'; leave it out")
        if isinstance(kept.get("items"), bool):  # "anything", or nothing behind what 'prefixItems' names
            del kept["items"]
        for key in ("items", "additionalProperties"):
            if key in kept and not isinstance(kept[key], bool):
                kept[key] = self._plain(kept[key], depth)
        if "pattern" in kept:
            kept["pattern"] = grammar_pattern(_of_kind(kept, "pattern", str, "a string"))
            self._check_pattern(kept["pattern"])
        only = kept.get("allOf", ())
        return only[0] if len(only) == 1 and not {"properties", "anyOf", "oneOf"} & set(kept) else kept

    def _name_of(self, pointer: Any) -> str:
        """A reference's name for the converter, the same for the same part; what it stands for is read later."""
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise GrammarError(
                f"the JSON schema refers to {_shown(pointer)}: references must stay inside it, as '#/$defs/NAME' does; "
                "nothing is fetched"
            )
        return self._names.setdefault(pointer, f"{self._name}ref{len(self._names)}")

    def _target(self, pointer: str) -> Any:
        """What the pointer leads to, through pointers that lead to others."""
        target: Any = {"$ref": pointer}
        followed: set[str] = set()
        while isinstance(target, Mapping) and isinstance(target.get("$ref"), str):
            pointer = target["$ref"]
            self._name_of(pointer)
            if pointer in followed:
                raise GrammarError(f"the JSON schema refers to {_shown(pointer)}, which leads back to itself")
            followed.add(pointer)
            target = self._look_up(pointer)
        return target

    def _look_up(self, pointer: str) -> Any:
        target: Any = self._schema
        for step in pointer[1:].split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and key.isascii() and key.isdecimal() and int(key) < len(target):
                target = target[int(key)]
            elif isinstance(target, Mapping) and key in target:
                target = target[key]
            else:
                raise GrammarError(f"the JSON schema refers to {_shown(pointer)}, which is not in it")
        if pointer != "#" and not pointer.startswith("#/"):
            raise GrammarError(f"the JSON schema refers to {_shown(pointer)}; write such a reference as '#/$defs/NAME'")
        return target


def _typed(kept: dict[str, Any]) -> dict[str, Any]:
    """The part with one type that is known, or as alternatives of one type each; its counts are counts."""
    for low_name, high_name in _COUNTS:
        _check_counts(kept, low_name, high_name)
    if "const" in kept or "enum" in kept:
        values = _of_kind(kept, "enum", list, "an array") if "const" not in kept else [kept["const"]]
        if not values:
            raise GrammarError("the JSON schema has an empty 'enum'; leave it out")
        return {"enum": values}
    if not _SHAPES & set(kept):
        kind = next((kind for key, kind in _ONLY_OF.items() if key in kept), None)
        if kind is None:
            raise GrammarError(f"the JSON schema has a part with {_shown(sorted(kept))} and no type; give it a 'type'")
        return kept | {"type": kind}
    kinds = kept.get("type", "object")
    for kind in kinds if isinstance(kinds, list) and kinds else [kinds]:
        if kind not in _TYPES:
            raise GrammarError(f"the JSON schema has the type {_shown(kind)}; there are {', '.join(_TYPES)}")
    if isinstance(kinds, list):
        return {"anyOf": [kept | {"type": kind} for kind in kinds]}
    return kept


def _check_counts(kept: Mapping[str, Any], low_name: str, high_name: str) -> None:
    low, high = kept.get(low_name, 0), kept.get(high_name, kept.get(low_name, 0))
    for name, count in ((low_name, low), (high_name, high)):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= REPETITIONS_MAX:
            raise GrammarError(
                f"the JSON schema has '{name}' {_shown(count)}; use 0 to {REPETITIONS_MAX}, or leave it out"
            )
    if low > high:
        raise GrammarError(f"the JSON schema has '{low_name}' {low} above '{high_name}' {high}")


def _check_optional_count(count: int) -> None:
    if count > OPTIONAL_PROPERTIES_MAX:
        raise GrammarError(
            f"the JSON schema has an object with {count} optional properties; at most {OPTIONAL_PROPERTIES_MAX} can "
            "be: name the others in 'required', or leave them out"
        )


def _of_kind(kept: Mapping[str, Any], key: str, kind: type, description: str) -> Any:
    if not isinstance(kept[key], kind):
        raise GrammarError(f"the JSON schema has {_shown(kept[key])} as '{key}'; it must be {description}")
    return kept[key]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " "}
"""Of white space a JSON string has only this unescaped."""
_PATTERN_PIECE = re.compile(r"\\(?P<escaped>.)|(?P<bracket>[\[\]])|.", re.DOTALL)
_KEEP_ESCAPED = frozenset('[]()|{}*+?\\"')


def grammar_pattern(pattern: str) -> str:
    """The regular expression with classes and escapes that grammars know: ``\\d`` as ``[0-9]``, ``\\.`` as ``[.]``."""
    written: list[str] = []
    is_inside = False
    for piece in _PATTERN_PIECE.finditer(pattern):
        escaped, text = piece["escaped"], piece[0]
        if piece["bracket"]:
            is_inside = text == "["
        elif escaped is not None:
            text = _escaped(escaped, is_inside=is_inside)
        written.append(text)
    return "".join(written)


def _escaped(character: str, *, is_inside: bool) -> str:
    if character.lower() in _CLASSES and not (is_inside and character.isupper()):
        inner = _CLASSES[character.lower()]
        return inner if is_inside else f"[{'^' if character.isupper() else ''}{inner}]"
    if character.isalnum() or character in _KEEP_ESCAPED:
        return f"\\{character}"
    if is_inside:
        return f"\\x{ord(character):02X}" if character.isascii() else character
    return character if character in "^$" else f"[{character}]"
