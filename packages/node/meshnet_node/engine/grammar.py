"""Grammars: GBNF checked before llama.cpp sees it, and JSON schemas turned into GBNF.

llama.cpp parses a grammar by recursion, and a grammar that nests too deep would take the whole process
with it; so size and depth are bounded here. The conversion of schemas is llama-cpp-python's own, put right where its
grammars would not match what they say; ``json_schema.py`` sees to it that it gets nothing it stumbles over.
"""

import json
from collections.abc import Mapping
from typing import Any

import llama_cpp
from llama_cpp import llama_grammar
from llama_cpp.llama_grammar import PRIMITIVE_RULES, SchemaConverter

from meshnet_node.engine.json_schema import SchemaReader
from meshnet_node.engine.llama import start_llama, take_errors
from meshnet_node.errors import GrammarError

GRAMMAR_BYTES_MAX = 256 * 1024
GRAMMAR_RULES_MAX = 4000
GRAMMAR_DEPTH_MAX = 100
REPETITION_MAX = 500
"""llama.cpp makes rules of each, and takes 2,000 of them at once."""

# The converter's own rule for it lets line ends and other control characters through, which JSON does not.
_STRING_CHARACTER = r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})'


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
        self._converter = _new_converter()
        self._schema_count = 0

    def add_schema(self, schema: Mapping[str, Any]) -> str:
        """The name of a rule that matches JSON of this schema. Raises GrammarError."""
        self._schema_count += 1
        name = f"json{self._schema_count}"
        reader = SchemaReader(schema, name, _check_pattern)
        self._converter._refs.update(reader.references)
        try:
            return str(self._converter.visit(reader.plain, name))
        except RecursionError as error:
            raise GrammarError("the JSON schema nests too deep where its references lead; make it flatter") from error
        except Exception as error:  # the converter asserts and indexes through whatever it is given
            raise GrammarError("the JSON schema cannot be turned into a grammar; make it simpler") from error

    def add_rule(self, name: str, body: str) -> str:
        return str(self._converter._add_rule(name, body))

    @staticmethod
    def literal(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "\\r").replace("\n", "\\n")
        return f'"{escaped}"'

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


def _new_converter() -> Any:
    make: Any = SchemaConverter  # the package's converter has no types
    converter = make(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
    # Its own lets a quote or a backslash in a name or value end the literal.
    converter._format_literal = lambda text: GrammarWriter.literal(json.dumps(json.loads(text), ensure_ascii=False))
    return converter


def _check_pattern(pattern: str) -> None:
    try:
        _new_converter()._visit_pattern(pattern, "pattern")
    except Exception as error:
        raise GrammarError(
            f"the JSON schema has the pattern {pattern[:80]!r}, which cannot be followed: a pattern must begin with ^ "
            "and end with $; groups, classes, | and counts are known, looking ahead or back is not"
        ) from error


def _repetition(
    rule: str, low: int, high: int | None, separator_rule: str | None = None, item_rule_is_literal: bool = False
) -> str:
    """As grammars count. The converter spells each repetition out, nested, which soon is too deep to be parsed."""
    if high == 0:
        return ""
    if separator_rule is None:
        times, more = divmod(low, REPETITION_MAX)
        whole = [f"{rule}{{{REPETITION_MAX}}}"] * times + ([f"{rule}{{{more}}}"] if more else [])
        optional = f"{rule}*" if high is None else _at_most(rule, high - low)
        return " ".join([*whole, optional] if optional else whole)
    rest = _repetition(f"({separator_rule} {rule})", max(low - 1, 0), None if high is None else high - 1)
    return f"{rule} {rest}" if low else f"({rule} {rest})?"


def _at_most(rule: str, count: int) -> str:
    """Nested, so that there is one way only to read what it matches, however many groups it is of."""
    if count <= 1:
        return f"{rule}?" if count else ""
    if count < REPETITION_MAX:
        return f"{rule}{{0,{count}}}"
    beyond = _at_most(rule, count - REPETITION_MAX)
    return f"({rule}{{0,{REPETITION_MAX - 1}}} | {rule}{{{REPETITION_MAX}}} {beyond})"


# Where the converter looks it up: it has no other place to say so.
llama_grammar._build_repetition = _repetition
