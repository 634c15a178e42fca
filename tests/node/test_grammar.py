"""Grammars and what the tail's sampler makes of them, with the real model's vocabulary."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshnet_node.engine.grammar import (
    GRAMMAR_BYTES_MAX,
    GRAMMAR_DEPTH_MAX,
    GRAMMAR_RULES_MAX,
    check_grammar,
    grammar_of_schema,
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
        ({"$ref": "#/nowhere"}, "cannot be turned"),
        ({"$ref": "https://example.com/schema.json"}, "not allowed"),
        ({"type": "wizard"}, "wizard"),
        ({"properties": {"a": 1}}, "where a schema must be"),
        ({"type": "string", "pattern": "("}, "cannot be turned"),
    ],
)
def test_a_schema_that_cannot_be_followed_says_why(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        grammar_of_schema(schema)


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
