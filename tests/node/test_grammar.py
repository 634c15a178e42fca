"""Grammars and what the tail's sampler makes of them, with the real model's vocabulary."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshnet_node.engine.grammar import (
    GRAMMAR_BYTES_MAX,
    GRAMMAR_DEPTH_MAX,
    GRAMMAR_RULES_MAX,
    GrammarWriter,
    check_grammar,
    grammar_of_schema,
)
from meshnet_node.engine.json_schema import (
    OPTIONAL_PROPERTIES_MAX,
    REPETITIONS_MAX,
    SCHEMA_DEPTH_MAX,
    SCHEMA_PARTS_MAX,
)
from meshnet_node.engine.sampling import TokenSampler
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_node.errors import GrammarError
from meshnet_protocol.messages import Sampling


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Vocabulary:
    return Vocabulary(model_path)


def noise(vocabulary: Vocabulary, position: int) -> Any:
    return np.random.default_rng(position).standard_normal(vocabulary.size).astype(np.float32)


def drawn(vocabulary: Vocabulary, sampling: Sampling, *, count: int, start: int = 0) -> list[int]:
    """Tokens from noise, up to the end token: whatever has a shape has it from the grammar."""
    sampler = TokenSampler(sampling, vocabulary)
    tokens = []
    for position in range(start, start + count):
        tokens.append(sampler.draw(noise(vocabulary, position), position=position).token_id)
        if vocabulary.is_end(tokens[-1]):
            break
    return tokens


def text_of(vocabulary: Vocabulary, tokens: list[int]) -> str:
    return b"".join(vocabulary.piece(token) for token in tokens).decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3},
        {"type": "object", "properties": {"x": {"type": "integer", "description": "a number"}}, "required": ["x"]},
        {"anyOf": [{"type": "null"}, {"const": 5}]},
        {"type": "string", "minLength": 3, "maxLength": 6},
        {"$defs": {"n": {"type": "boolean"}}, "type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2},
    ],
)
def test_noise_under_a_schema_is_json_of_it(vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    sampling = Sampling(temperature=1, seed=3, grammar=grammar_of_schema(schema))
    tokens = drawn(vocabulary, sampling, count=120)

    assert vocabulary.is_end(tokens[-1])
    json.loads(text_of(vocabulary, tokens))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#/nowhere"}, "which is not in it"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "back to itself"),
        ({"$ref": "https://example.com/schema.json"}, "nothing is fetched"),
        ({"$ref": "http://example.com/schema.json"}, "nothing is fetched"),
        ({"$ref": "other.json"}, "'#/[$]defs/NAME'"),
        ({"$ref": 5}, "'#/[$]defs/NAME'"),
        ({"type": "wizard"}, "'wizard'; there are object, array"),
        ({"type": ["string", 5]}, "the type 5; there are"),
        ({"minimum": 1, "minLength": 1}, "give it a 'type'"),
        ({"not": {"type": "string"}}, "'not', which an answer cannot be held to here; say what is wanted"),
        ({"type": "object", "if": {}, "then": {}}, "'if', which .* with 'anyOf'"),
        ({"type": "array", "items": True, "uniqueItems": True}, "'uniqueItems', which .* leave it out"),
        ({"type": "array", "contains": {"const": 1}}, "'contains', which"),
        ({"type": "object", "patternProperties": {"^a": True}}, "use 'additionalProperties'"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "'propertyNames', which"),
        ({"type": "object", "minProperties": 1}, "name the properties in 'required'"),
        ({"type": "object", "maxProperties": 1}, "'maxProperties', which"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "'dependentRequired', which"),
        ({"type": "integer", "multipleOf": 5}, "'multipleOf', which .* 'enum'"),
        ({"type": "number", "multipleOf": 0.01}, "'multipleOf', which .* 'enum'"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "'minimum' 3, 'maximum' 2, and no integer is between"),
        ({"type": "number", "minimum": "3"}, "'3' as 'minimum'; it must be a number"),
        ({"type": "number", "maximum": 1e300}, "use at most 30 digits"),
        ({"type": "string", "pattern": "^a$", "maxLength": 3}, "write the length into the pattern"),
        ({"type": "string", "enum": [1, 2]}, "of which no value may be"),
        ({"enum": ["a", "b"], "pattern": "^a"}, "pattern beside the values of an 'enum'; list those that may be"),
        ({"type": "array", "minItems": 3, "prefixItems": [True], "items": False}, "at least 3 items, and of at most 1"),
        (
            {"properties": {"a": True}, "required": ["b"], "additionalProperties": False},
            "requires .*'b', and forbids it",
        ),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "it can have one only"),
        ({"type": "string", "anyOf": [{"type": "null"}]}, "it can have one only"),
        ({"allOf": [{"enum": [1, 2]}, {"const": 3}]}, "one of .* and of .* at once"),
        ({"items": {"anyOf": [False]}}, "leave that part out"),
        ({"allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}, "two different things by 'pattern'"),
        ({"allOf": [{"$ref": "#"}, {"type": "object"}]}, "levels"),
        ({"properties": {"a": 1}}, "where a schema must be"),
        ({"properties": [1]}, "must be an object"),
        ({"type": "object", "properties": {"a": True}, "required": 5}, "must be an array"),
        ({"type": "string", "pattern": "("}, "a '[)]' is missing"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "beyond it, looking ahead or back among them"),
        ({"type": "string", "maxLength": REPETITIONS_MAX + 1}, f"use 0 to {REPETITIONS_MAX}"),
        ({"type": "array", "items": True, "minItems": -1}, f"use 0 to {REPETITIONS_MAX}"),
        ({"type": "string", "minLength": 5, "maxLength": 4}, "above"),
        ({"enum": []}, "empty 'enum'"),
        ({"anyOf": []}, "empty 'anyOf'"),
    ],
)
def test_a_schema_that_cannot_be_followed_says_what_to_do(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message) as refusal:
        grammar_of_schema(schema)
    assert not re.search("allow-fetch|object has no|Unsupported|recursion|visit", str(refusal.value))


def object_of(count: int, **rest: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}, **rest}


def nested(depth: int, inner: dict[str, Any]) -> dict[str, Any]:
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}}
    return inner


def chained(length: int) -> dict[str, Any]:
    links = {f"d{n}": {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{length}": {"type": "null"}}}


def pointers(length: int) -> dict[str, Any]:
    defs = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{length}": {"$ref": "#/$defs/d0"}}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (object_of(OPTIONAL_PROPERTIES_MAX + 1), f"at most {OPTIONAL_PROPERTIES_MAX} can be"),
        (object_of(5000), f"at most {OPTIONAL_PROPERTIES_MAX} can be"),
        (object_of(5000, required=[f"p{n}" for n in range(5000)]), f"more than {SCHEMA_PARTS_MAX} properties"),
        (object_of(2000, required=[f"q{n}" for n in range(10**6)]), f"at most {OPTIONAL_PROPERTIES_MAX} can be"),
        (nested(SCHEMA_DEPTH_MAX, {"type": "null"}), f"more than {SCHEMA_DEPTH_MAX} levels"),
        (chained(450), "too deep where its references lead"),
        (pointers(20_000), "leads back to itself"),
        ({"allOf": [{"properties": {f"{n}-{k}": True for k in range(2000)}} for n in range(90)]}, "more than"),
        ({"allOf": [{"required": [f"{n}-{k}" for k in range(2000)]} for n in range(90)]}, "more than"),
        ({"allOf": [{"enum": list(range(9000))}, {"enum": list(range(9001))}]}, "two long 'enum'"),
        ({"allOf": [{"type": ["null"] * 9000}, {"type": ["null", "string"] * 9000}]}, "more than 7 types"),
        ({"properties": {f"p{n}": {"pattern": "^" + "." * 2000} for n in range(50)}}, "too large a grammar"),
        ({"pattern": "(" * 30 + "a" + "{9000})" * 30}, "counts make too much of it"),
    ],
)
def test_a_schema_of_any_size_is_refused_by_the_limit_that_it_exceeds(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        grammar_of_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        nested(SCHEMA_DEPTH_MAX - 2, object_of(OPTIONAL_PROPERTIES_MAX)),
        object_of(SCHEMA_PARTS_MAX - 1, required=[f"p{n}" for n in range(SCHEMA_PARTS_MAX - 1)]),
        {"type": "string", "minLength": 2, "maxLength": REPETITIONS_MAX},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": REPETITIONS_MAX},
        {"type": "array", "items": {"type": "integer"}, "minItems": REPETITIONS_MAX},
        chained(50),
    ],
)
def test_a_schema_just_inside_the_limits_is_taken(vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    check_grammar(vocabulary.handle, grammar_of_schema(schema))


TREE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]}
EITHER = {
    "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
    "anyOf": [{"required": ["a", "b"]}, {"required": ["c"], "properties": {"a": False}}],
}
TYPED_LIST = {"type": ["object", "null"], "properties": {"a": {"const": 1}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (TREE, '{"next": {"next": null}}', '{"next": 1}'),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": "c"}}}, '"c"', '"d"'),
        ({"allOf": [{"$ref": "#/$defs/e"}], "$defs": {"e": {"enum": ["x"]}}}, '"x"', "{}"),
        ({"enum": ['say "hi"', "back\\slash", "é", 5, None]}, '"say \\"hi\\""', '"say '),
        ({"enum": ["back\\slash"]}, '"back\\\\slash"', '"back\\slash"'),
        ({"type": ["string", "null"], "enum": ["a", None]}, "null", '"b"'),
        (TYPED_LIST, '{"a": 1}', '{"a": 2}'),
        ({"properties": {"a": {"const": 1}}, "required": ["a", {}, "b"]}, '{"a": 1, "b": 2}', '{"a": 1}'),
        ({"type": "string", "maxLength": 300}, f'"{"x" * 300}"', f'"{"x" * 301}"'),
        ({"type": "string", "maxLength": 1200}, f'"{"x" * 1200}"', f'"{"x" * 1201}"'),
        ({"type": "string", "maxLength": 1000}, f'"{"x" * 999}"', f'"{"x" * 1001}"'),
        ({"type": "string", "minLength": 501}, f'"{"x" * 501}"', f'"{"x" * 500}"'),
        ({"type": "string", "minLength": 500, "maxLength": 500}, f'"{"x" * 500}"', f'"{"x" * 499}"'),
        ({"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 3}, "[1, 1, 1]", "[1]"),
        ({"type": "array", "items": {"const": 1}, "maxItems": 0}, "[]", "[1]"),
        ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, "-3", "12"),
        ({"type": "integer", "exclusiveMinimum": 9.5}, "10", "9"),
        ({"minimum": 0, "exclusiveMinimum": True}, "0.25", "0"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "0.75", "1.01"),
        ({"type": ["integer", "null"], "maximum": 5, "maxLength": 3}, "null", "6"),
        ({"type": "number", "multipleOf": 1}, "3", "3.5"),
        ({"type": "array", "minItems": 2}, "[1, {}]", "[1]"),
        ({"type": "array", "items": False}, "[]", "[1]"),
        (
            {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 3},
            "[1,2,2]",
            "[1,2,2,2]",
        ),
        ({"items": [{"const": 1}, {"const": 2}]}, "[1, 2]", "[1]"),
        ({"type": ["null", "boolean"] * 9000}, "true", "1"),
        (
            {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1}},
            '{"a": 1}',
            '{"a": 2}',
        ),
        (
            {"type": "object", "patternProperties": {"^(.*)$": {"const": 1}}, "additionalProperties": False},
            '{"a": 1}',
            '{"a": 2}',
        ),
        ({"type": "object", "properties": {}}, "{}", '{"a": 1}'),
        ({"type": "object"}, '{"a": 1}', "[]"),
        ({"type": "object", "required": ["a"]}, '{"a": []}', "{}"),
        ({"properties": {"a": {"const": 1}}, "additionalProperties": True}, '{"a": 1, "b": 2}', '{"a": 2}'),
        ({"properties": {"a": {"const": 1}}, "additionalProperties": True}, '{"ab": 2, "": 3}', '{"b": 2, "a": 2}'),
        (object_of(1, additionalProperties={"const": 5}), '{"p": 5, "p00": 5, "q": 5}', '{"p0": 5}'),
        (
            {"properties": {"x" * 90: {"const": 1}}, "additionalProperties": True},
            f'{{"{"x" * 91}": 2}}',
            f'{{"{"x" * 90}": 2}}',
        ),
        ({"properties": {'q"': {"const": 1}}, "additionalProperties": True}, '{"q": 2, "qq": 2}', '{"q"x": 2}'),
        ({"properties": {"q\\": {"const": 1}}, "additionalProperties": True}, '{"q\\\\": 1}', '{"q\\": 2}'),
        ({"properties": {"a": {"const": 1}}, "unevaluatedProperties": False}, '{"a": 1}', '{"b": 2}'),
        ({"properties": {"a": {"const": 1}, "b": False}, "minProperties": 0}, '{"a": 1}', '{"b": 2}'),
        (EITHER, '{"a": 1, "b": 2}', '{"a": 1, "c": 3}'),
        ({"allOf": [{"minLength": 2}, {"type": "string", "maxLength": 3}]}, '"ab"', '"a"'),
        (
            {"allOf": [object_of(1), {"properties": {"p0": {"enum": ["x"]}}, "required": ["p0"]}]},
            '{"p0": "x"}',
            '{"p0": "y"}',
        ),
        ({"$ref": "#/$defs/n", "maximum": 5, "$defs": {"n": {"type": "integer", "minimum": 3}}}, "4", "6"),
        ({"type": "string", "enum": ["a", 1]}, '"a"', "1"),
        ({"enum": [1, 2, 3.5, "abc", "a"], "exclusiveMinimum": 1, "maxLength": 2}, "3.5", "1"),
        ({"enum": [0.3, 0.35, 1], "multipleOf": 0.1}, "0.3", "0.35"),
        ({"enum": [1, 2, 3.5, "abc", "a"], "exclusiveMinimum": 1, "maxLength": 2}, '"a"', '"abc"'),
        ({"type": "string", "anyOf": [{"type": "null"}, {"minLength": 1}, False]}, '"a"', "null"),
        ({"example": 5, "nullable": False, "x-order": 1}, "5", "nonsense"),
        ({"type": "string", "format": "ipv4"}, '"192.0.2.250"', '"192.0.2.256"'),
        ({"type": "string", "format": "date", "maxLength": 2}, '"ab"', '"abc"'),
        ({"type": "string", "pattern": r"^\d{3}-\w+\.(com|org)$"}, '"123-a_b.org"', '"123-a_b,org"'),
        ({"type": "string", "pattern": r"^[\w.\-+]+@\S{2,150}$"}, '"a-b+c@de"', '"a b@de"'),
    ],
)
def test_a_schemas_grammar_takes_what_follows_it_and_nothing_else(
    vocabulary: Vocabulary, schema: dict[str, Any], good: str, bad: str
) -> None:
    sampling = Sampling(temperature=0, grammar=grammar_of_schema(schema))

    assert follows(vocabulary, sampling, good)
    assert not follows(vocabulary, sampling, bad)


def test_references_of_one_name_in_two_tools_mean_different_things(vocabulary: Vocabulary) -> None:
    writer = GrammarWriter()
    rules = [
        writer.add_schema({"properties": {"a": {"$ref": "#/$defs/Item"}}, "required": ["a"], "$defs": {"Item": item}})
        for item in ({"const": 1}, {"const": 2})
    ]
    sampling = Sampling(temperature=0, grammar=writer.write(" ".join(rules)))

    assert follows(vocabulary, sampling, '{"a": 1}{"a": 2}')
    assert not follows(vocabulary, sampling, '{"a": 1}{"a": 1}')


def follows(vocabulary: Vocabulary, sampling: Sampling, text: str) -> bool:
    """Whether the grammar lets all of the text be drawn, and then lets it end."""
    sampler = TokenSampler(sampling, vocabulary)
    for position, character in enumerate(text.encode()):
        logits = np.zeros(vocabulary.size, np.float32)
        (token,) = vocabulary.tokenize(bytes([character]).decode(), add_special=False, parse_special=False)
        logits[token] = 10
        if sampler.draw(logits, position=position).token_id != token:
            return False
    logits = np.zeros(vocabulary.size, np.float32)
    logits[vocabulary.end_token] = 10
    return vocabulary.is_end(sampler.draw(logits, position=len(text)).token_id)


def test_a_schema_that_nests_without_end_is_refused() -> None:
    schema: dict[str, Any] = {"type": "array"}
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarError, match="levels"):
        grammar_of_schema(schema)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= nowhere",
        'start ::= "a"',
        'root ::= root "a" | "b"',
        "root ::= " + "(" * (GRAMMAR_DEPTH_MAX + 1) + '"a"' + ")" * (GRAMMAR_DEPTH_MAX + 1),
        'root ::= "' + "a" * GRAMMAR_BYTES_MAX + '"',
        'root ::= "a"\n' + 'a ::= "b"\n' * GRAMMAR_RULES_MAX,
        'root ::= "a\0b"',
        'root ::= "a"{999999}',
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_and_the_process_lives(vocabulary: Vocabulary, grammar: str) -> None:
    with pytest.raises(GrammarError):
        check_grammar(vocabulary.handle, grammar)


def test_a_finished_grammar_lets_only_the_end_come_as_often_as_it_is_asked(vocabulary: Vocabulary) -> None:
    sampler = TokenSampler(Sampling(temperature=1, seed=1, grammar='root ::= "ab"'), vocabulary)
    tokens = [sampler.draw(noise(vocabulary, p), position=p).token_id for p in range(6)]

    assert text_of(vocabulary, tokens) == "ab"
    assert all(vocabulary.is_end(token) for token in tokens[2:])


def test_where_nothing_can_follow_the_answer_ends(vocabulary: Vocabulary) -> None:
    """No token of the model has a zero byte, so this grammar can never be fulfilled."""
    sampler = TokenSampler(Sampling(temperature=0, grammar='root ::= "a" [\\x00]'), vocabulary)
    tokens = [sampler.draw(noise(vocabulary, p), position=p).token_id for p in range(3)]

    assert text_of(vocabulary, tokens[:1]) == "a"
    assert tokens[1] == tokens[2] == vocabulary.end_token


def test_a_sampler_is_rebuilt_from_the_tokens_drawn_before(vocabulary: Vocabulary) -> None:
    sampling = Sampling(
        temperature=1,
        seed=9,
        repeat_penalty=1.5,
        presence_penalty=1.0,
        penalty_tokens=8,
        prompt_tail=(5, 6, 7),
        grammar='root ::= ([a-c] " ")*',
    )
    whole = drawn(vocabulary, sampling, count=30, start=3)
    resumed = Sampling(
        **{name: getattr(sampling, name) for name in sampling.__struct_fields__} | {"drawn": tuple(whole[:12])}
    )

    assert whole[12:] == drawn(vocabulary, resumed, count=30 - 12, start=15)[: len(whole) - 12]
