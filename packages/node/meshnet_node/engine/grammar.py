"""Grammars: GBNF checked before llama.cpp sees it, and JSON schemas turned into GBNF.

llama.cpp parses a grammar by recursion, and a grammar that nests too deep would take the whole process
with it; so size and depth are bounded here. The conversion of schemas is llama-cpp-python's own; what
it stumbles over becomes one clear error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import llama_cpp
from llama_cpp.llama_grammar import PRIMITIVE_RULES, SchemaConverter

from meshnet_node.engine.llama import start_llama, take_errors
from meshnet_node.errors import GrammarError

GRAMMAR_BYTES_MAX = 256 * 1024
GRAMMAR_RULES_MAX = 4000
GRAMMAR_DEPTH_MAX = 100
SCHEMA_DEPTH_MAX = 60

# The converter's own rule for it lets line ends and other control characters through, which JSON does not.
_STRING_CHARACTER = r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})'
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
_ANY_TYPE = {"type": ["object", "array", "string", "number", "boolean", "null"]}
_SCHEMA_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not")


def make_grammar_sampler(vocabulary: Any, grammar: str) -> Any:
    """A llama.cpp sampler the caller frees. Raises GrammarError."""
    _check_bounds(grammar)
    start_llama()
    take_errors()
    sampler = llama_cpp.llama_sampler_init_grammar(vocabulary, grammar.encode(), b"root")
    if not sampler:
        raise GrammarError(f"the grammar cannot be read: {take_errors()}")
    return sampler


def check_grammar(vocabulary: Any, grammar: str) -> None:
    """Raises GrammarError unless ``make_grammar_sampler`` will take it."""
    llama_cpp.llama_sampler_free(make_grammar_sampler(vocabulary, grammar))


class GrammarWriter:
    """A grammar made of JSON schemas and literal text."""

    def __init__(self) -> None:
        # The package's converter has no types.
        make: Any = SchemaConverter
        self._converter: Any = make(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        self._schema_count = 0

    def add_schema(self, schema: Mapping[str, Any]) -> str:
        """The name of a rule that matches JSON of this schema. Raises GrammarError."""
        self._schema_count += 1
        name = f"json{self._schema_count}"
        try:
            plain = _plain(schema, SCHEMA_DEPTH_MAX)
            # References are relative to the schema they stand in, so each one is resolved by itself.
            return str(self._converter.visit(self._converter.resolve_refs(plain, name), name))
        except GrammarError:
            raise
        except Exception as error:  # the converter asserts, indexes and recurses through whatever it is given
            detail = str(error) or type(error).__name__
            raise GrammarError(f"the JSON schema cannot be turned into a grammar: {detail[:500]}") from error

    def add_rule(self, name: str, body: str) -> str:
        return str(self._converter._add_rule(name, body))

    def literal(self, text: str) -> str:
        return str(self._converter._format_literal(text))

    def write(self, root: str) -> str:
        """The whole grammar; ``root`` is the body of its first rule."""
        self.add_rule("root", root)
        rules = self._converter._rules
        for name, rule in rules.items():
            if rule == PRIMITIVE_RULES["char"].content:
                rules[name] = _STRING_CHARACTER
        return str(self._converter.format_grammar())


def grammar_of_schema(schema: Mapping[str, Any]) -> str:
    """A grammar for JSON that follows the schema; an empty one stands for any object. Raises GrammarError."""
    writer = GrammarWriter()
    return writer.write(writer.add_schema(schema or {"type": "object"}))


def _check_bounds(grammar: str) -> None:
    if len(grammar.encode()) > GRAMMAR_BYTES_MAX:
        raise GrammarError(f"the grammar exceeds {GRAMMAR_BYTES_MAX} bytes; make it smaller")
    if "\0" in grammar:
        raise GrammarError("the grammar has a zero character in it")
    if grammar.count("::=") > GRAMMAR_RULES_MAX:
        raise GrammarError(f"the grammar has more than {GRAMMAR_RULES_MAX} rules; make it smaller")
    depth = deepest = 0
    for character in grammar:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > GRAMMAR_DEPTH_MAX:
        raise GrammarError(f"the grammar nests more than {GRAMMAR_DEPTH_MAX} groups; make it flatter")


def _plain(schema: Any, depth: int) -> dict[str, Any]:
    """The schema without annotations, and with "anything" spelled out: the converter knows neither."""
    if depth == 0:
        raise GrammarError(f"the JSON schema nests more than {SCHEMA_DEPTH_MAX} levels; make it flatter")
    if schema is True:
        return dict(_ANY_TYPE)
    if not isinstance(schema, Mapping):
        raise GrammarError(f"the JSON schema has {schema!r} where a schema must be")
    kept = {key: value for key, value in schema.items() if key not in _ANNOTATIONS and not key.startswith("$schema")}
    return _with_plain_parts(kept, depth - 1) if kept else dict(_ANY_TYPE)


def _with_plain_parts(kept: dict[str, Any], depth: int) -> dict[str, Any]:
    for key in _SCHEMA_MAPS:
        if isinstance(kept.get(key), Mapping):
            kept[key] = {name: _plain(part, depth) for name, part in kept[key].items()}
    for key in _SCHEMA_LISTS:
        if isinstance(kept.get(key), Sequence):
            kept[key] = [_plain(part, depth) for part in kept[key]]
    for key in _SCHEMAS:
        if isinstance(kept.get(key), Mapping):
            kept[key] = _plain(kept[key], depth)
    return kept
