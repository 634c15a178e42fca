"""Grammars: GBNF checked before llama.cpp sees it, and JSON schemas turned into GBNF.

llama.cpp parses a grammar by recursion, and a grammar that nests too deep would take the whole process
with it; so size and depth are bounded here. The conversion of schemas is llama-cpp-python's own, put right where its
grammars would not match what they say; ``json_schema.py`` sees to it that it gets nothing it stumbles over.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import llama_cpp
from llama_cpp import llama_grammar
from llama_cpp.llama_grammar import PRIMITIVE_RULES

from meshnet_node.engine.json_schema import SchemaReader
from meshnet_node.engine.llama import start_llama, take_errors
from meshnet_node.engine.repetition import repetition
from meshnet_node.errors import GrammarError

GRAMMAR_BYTES_MAX = 256 * 1024
GRAMMAR_RULES_MAX = 4000
GRAMMAR_DEPTH_MAX = 100
NAME_GROUPS_MAX = 32
"""Characters of a property's name that are told apart in groups within groups."""

_SCHEMA_CONVERTER: Any = llama_grammar.SchemaConverter  # the package's converter has no types

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
        self._converter = _Converter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        self._schema_count = 0

    def add_schema(self, schema: Mapping[str, Any]) -> str:
        """The name of a rule that matches JSON of this schema. Raises GrammarError."""
        self._schema_count += 1
        name = f"json{self._schema_count}"
        try:
            reader = SchemaReader(schema, name)
            self._converter._refs.update(reader.references)
            return str(self._converter.visit(reader.plain, name))
        except GrammarError:
            raise
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


class _Converter(_SCHEMA_CONVERTER):  # type: ignore[misc]
    """The package's converter, with rules of our own where its would let through what the schema does not."""

    def visit(self, schema: Mapping[str, Any], name: str) -> str:
        """Adds a rule for a plain part of a schema; the rule's name."""
        if "grammar" in schema:
            return self._rule(name, f"({schema['grammar']}) space")
        if schema.get("type") == "object" and "properties" in schema:
            return self._rule(name, self._object(schema, name))
        if schema.get("type") == "array" and "items" in schema:
            return self._rule(name, self._array(schema, name))
        return str(super().visit(schema, name))

    def _format_literal(self, literal: str) -> str:
        """Its own lets a quote or a backslash in a name or value end the literal."""
        return GrammarWriter.literal(json.dumps(json.loads(literal), ensure_ascii=False))

    def _rule(self, name: str, body: str) -> str:
        return str(self._add_rule(name, body))

    def _object(self, schema: Mapping[str, Any], name: str) -> str:
        """What is required, then what may be left out, then whatever else there may be."""
        pairs = {
            key: self._rule(
                f"{name}-{key}-kv",
                f'{self._format_literal(json.dumps(key))} space ":" space {self.visit(part, f"{name}-{key}")}',
            )
            for key, part in schema["properties"].items()
        }
        required = [pairs[key] for key in pairs if key in schema["required"]]
        optional = [pairs[key] for key in pairs if key not in schema["required"]]
        others = ""
        if schema["additionalProperties"] is not False:
            value = self.visit(schema["additionalProperties"], f"{name}-additional-value")
            key = self._rule(f"{name}-additional-k", self._other_key(list(pairs)))
            others = self._rule(f"{name}-additional-kv", f'{key} space ":" space {value}')
        rests = [f'("," space {others})*' if others else ""]
        for index, pair in reversed(list(enumerate(optional))):
            rests.append(self._rule(f"{name}-{index}-rest", f'("," space {pair})? {rests[-1]}'))
        rests.reverse()
        if required:
            members = ' "," space '.join(required) + f" {rests[0]}"
        else:
            firsts = [f"{pair} {rest}" for pair, rest in zip(optional, rests[1:], strict=True)]
            firsts += [f"{others} {rests[-1]}"] if others else []
            members = f"({' | '.join(firsts)})?" if firsts else ""
        return f'"{{" space {members} "}}" space'

    def _other_key(self, names: Sequence[str]) -> str:
        """A name that is none of these, which say what their values are. It is spelled without escapes as far as it
        looks like one of them: the letters' escapes would be another way to write it."""
        if not names:
            return str(self._add_primitive("string", PRIMITIVE_RULES["string"]))
        character = self._add_primitive("char", PRIMITIVE_RULES["char"])
        return f'"\\"" {self._none_of(sorted(set(names)), str(character), 0)} "\\"" space'

    def _none_of(self, endings: Sequence[str], character: str, depth: int) -> str:
        """``endings``: what would make one of the names of what is written so far."""
        firsts = sorted(
            {ending[0] for ending in endings if ending and json.dumps(ending[0], ensure_ascii=False)[1] != "\\"}
        )
        others = "".join(f"\\U{ord(first):08X}" for first in firsts)
        rules = [f'[^{others}"\\\\\\x7F\\x00-\\x1F] {character}*']
        for first in firsts:
            rest = [ending[1:] for ending in endings if ending[:1] == first]
            rules.append(f"{GrammarWriter.literal(first)} {self._none_of(rest, character, depth + 1)}")
        rule = f"({' | '.join(rules)})" + ("" if "" in endings else "?")
        # Groups within groups are read by recursion, rules within rules are not.
        return self._rule(f"other-{depth}", rule) if depth % NAME_GROUPS_MAX == NAME_GROUPS_MAX - 1 else rule

    def _array(self, schema: Mapping[str, Any], name: str) -> str:
        """The items of ``first``, one each, then from ``minItems`` to ``maxItems`` of the others."""
        first = [self.visit(part, f"{name}-tuple-{index}") for index, part in enumerate(schema.get("first", ()))]
        low, high = schema["minItems"], schema["maxItems"]
        item = "" if high == 0 else self.visit(schema["items"], f"{name}-item")
        if first or not item:
            others = repetition(f'("," space {item})', low, high) if item else ""
            items = ' "," space '.join(first) + f" {others}"
        else:
            rest = repetition(f'("," space {item})', max(low - 1, 0), None if high is None else high - 1)
            items = f"{item} {rest}" if low else f"({item} {rest})?"
        return f'"[" space {items} "]" space'


def _string_repetition(
    rule: str, low: int, high: int | None, separator_rule: str | None = None, item_rule_is_literal: bool = False
) -> str:
    """As grammars count. The converter spells each repetition out, nested, which soon is too deep to be parsed."""
    return "" if high == 0 else repetition(rule, low, high)


# Where the converter looks it up, for the lengths of strings: it has no other place to say so.
llama_grammar._build_repetition = _string_repetition
