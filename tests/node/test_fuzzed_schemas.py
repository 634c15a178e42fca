"""Made-up JSON schemas: each is refused in words, or whatever noise draws by its grammar follows it.

``jsonschema-rs`` has the last word on what follows. Seeded, so that a failure repeats.
"""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from meshnet_node.engine.grammar import check_grammar, grammar_of_schema
from meshnet_node.engine.sampling import TokenSampler
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_node.errors import GrammarError
from meshnet_protocol.messages import Sampling

SCHEMAS_A_SEED = 30
TOKENS_MAX = 50
DEPTH_MAX = 3
NAMES = ["a", "b", "ab", "", "é", "a b", 'a"']
KINDS = ["object", "array", "string", "number", "integer", "boolean", "null"]
SAID_OF = {
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems"), "array"),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), "string"),
    "minimum": "number",
}
DEFINITIONS = {
    "A": {"type": "integer", "minimum": 2, "maximum": 40},
    "B": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/B"}, {"type": "null"}]}},
        "required": ["a"],
    },
}


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Vocabulary:
    return Vocabulary(model_path)


class Maker:
    """Makes schemas up: mostly sensible, often contradictory."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice

    def schema(self, depth: int = 0) -> Any:
        if depth > DEPTH_MAX or self._dice.random() < 0.05:
            return self._dice.choice([True, {}, {"type": "null"}, {"const": 'q"\\\n'}, {"enum": [1, "b", None, 2.5]}])
        made: dict[str, Any] = {}
        if self._dice.random() < 0.8:
            made["type"] = self._dice.choice([*KINDS, ["string", "null"], ["integer", "array"]])
        for keyword, make in self._keywords(depth).items():
            fits = SAID_OF.get(keyword, "no kind") in str(made.get("type"))
            if self._dice.random() < (0.4 if fits else 0.05):
                made[keyword] = make()
        return made

    def _keywords(self, depth: int) -> dict[str, Callable[[], Any]]:
        dice = self._dice

        def part() -> Any:
            return self.schema(depth + 1)

        def limit() -> Any:
            return dice.choice([0, 1, -1, 3, 0.5, -2.25, 99, 1000.0, -7.125])

        return {
            "properties": lambda: {name: part() for name in dice.sample(NAMES, dice.randint(0, 3))},
            "required": lambda: dice.sample(NAMES, dice.randint(0, 2)),
            "additionalProperties": lambda: dice.choice([True, False, part()]),
            "items": lambda: dice.choice([True, False, part(), part()]),
            "prefixItems": lambda: [part() for _ in range(dice.randint(1, 2))],
            "minItems": lambda: dice.randint(0, 3),
            "maxItems": lambda: dice.randint(0, 4),
            "minLength": lambda: dice.randint(0, 3),
            "maxLength": lambda: dice.randint(0, 4),
            "pattern": lambda: dice.choice(["^a+$", "b", "^[^x]{1,3}$", "^(x|y)?$", "\\d{2}"]),
            "minimum": limit,
            "exclusiveMaximum": limit,
            "anyOf": lambda: [part() for _ in range(dice.randint(1, 3))],
            "allOf": lambda: [part() for _ in range(dice.randint(1, 2))],
            "$ref": lambda: dice.choice(["#/$defs/A", "#/$defs/B"]),
            "enum": lambda: [1, "a", "ab", None, 7.5][: dice.randint(1, 5)],
            "uniqueItems": lambda: True,
        }


def drawn(vocabulary: Vocabulary, grammar: str, dice: np.random.Generator) -> str | None:
    """What noise with a leaning to the end draws; None if it finds no end."""
    sampler = TokenSampler(Sampling(temperature=1, grammar=grammar), vocabulary)
    closing = [vocabulary.tokenize(text, add_special=False, parse_special=False)[0] for text in ("}", "]", '"', "1")]
    pieces: list[bytes] = []
    for position in range(TOKENS_MAX):
        logits = dice.standard_normal(vocabulary.size).astype(np.float32)
        logits[[vocabulary.end_token, *closing]] += 6
        token = sampler.draw(logits, position=position).token_id
        if vocabulary.is_end(token):
            return b"".join(pieces).decode()
        pieces.append(vocabulary.piece(token))
    return None


@pytest.mark.parametrize("seed", range(4))
def test_what_is_drawn_by_a_schema_follows_it(vocabulary: Vocabulary, seed: int) -> None:
    dice, maker, followed = np.random.default_rng(seed), Maker(Random(seed)), 0
    for _ in range(SCHEMAS_A_SEED):
        schema = maker.schema()
        schema = {"$defs": DEFINITIONS} | (schema if isinstance(schema, dict) else {})
        try:
            grammar = grammar_of_schema(schema)
            check_grammar(vocabulary.handle, grammar)
        except GrammarError as refusal:
            if "make it simpler" in str(refusal):  # the converter's own insides: a part that it was not to see
                raise
            continue
        text = drawn(vocabulary, grammar, dice)
        if text is not None:
            assert jsonschema_rs.is_valid(schema, json.loads(text)), (schema, text)
            followed += 1

    assert followed > SCHEMAS_A_SEED / 4
