"""Regular expressions of schemas, against Python's own reading of them, over the strings that JSON can write."""

import json
import re
from pathlib import Path

import pytest

from meshnet_node.engine.grammar import grammar_of_schema
from meshnet_node.engine.json_pattern import (
    COUNT_MAX,
    FORMAT_PATTERNS,
    PATTERN_CHARS_MAX,
    PATTERN_DEPTH_MAX,
    string_rule,
)
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_node.errors import GrammarError
from node.engine_helpers import follows

TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "ba",
    "abc",
    "aab",
    "aabb",
    '"',
    "\\",
    "a\nb",
    "\t",
    " ",
    "~",
    "7",
    "a7_",
    "-",
    "]",
    "^",
    "$",
]
TEXTS += ["xaby", '"a"', "\\d", "a.b", "a/b", "café", "日本", "{2}", "a{2}", "aa"]


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Vocabulary:
    return Vocabulary(model_path)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^a$",
        "a",
        "^a",
        "b$",
        "^a|b$",
        "^(a|b)+$",
        "^(?:a|b)*$",
        "^(?P<name>a)b?$",
        "^a*?b$",
        "^.$",
        "^.*$",
        "^[^a]$",
        r"^[ -~]+$",
        r'^["\\]$',
        r"^\\$",
        r'^"$',
        r"^\"a\"$",
        r"^\s$",
        r"^\S+$",
        r"^\W$",
        r"^[\W\d]$",
        r"^[^\w]$",
        r"^\d\w\D$",
        r"^a\nb$",
        r"^\t$",
        r"^[a-c]{2,3}$",
        "^a{2}$",
        r"^a\{2\}$",
        r"^\{2\}$",
        r"^[\]\^\-]$",
        r"^[\x61-\x63\u0064]+$",
        r"^a\.b$",
        r"^a\/b$",
        "^caf\u00e9$",
        r"^[\u3000-\u9fff]+$",
        "",
        "^$",
        "^(|a)$",
        "^(a|ab)(c|bcd)?$",
        "^a{0}$",
        r"^\$|\^$",
    ],
)
def test_strings_match_exactly_if_their_text_matches(vocabulary: Vocabulary, pattern: str) -> None:
    grammar = grammar_of_schema({"type": "string", "pattern": pattern})

    for text in TEXTS:
        written = json.dumps(text, ensure_ascii=False)
        matches = re.search(re.sub(r"\$$", r"\\Z", pattern), text, re.ASCII) is not None
        assert follows(vocabulary, grammar, written) == matches, text


@pytest.mark.parametrize("pattern", ["^.+$", r"^\S+$", "^[^a]*$", "a"])
def test_what_is_drawn_by_a_pattern_is_json(vocabulary: Vocabulary, pattern: str) -> None:
    """Whatever the model would rather say: a quote in the text must not end the string."""
    grammar = grammar_of_schema({"type": "string", "pattern": pattern})

    for bad in ('"a"b"', '"a\\"', '"a\nb"', '"\\x"'):
        assert not follows(vocabulary, grammar, bad)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "missing"),
        ("a)", r"a '\)' too many"),
        ("[a", "missing"),
        ("[b-a]", "goes backwards"),
        ("*a", "nothing before"),
        ("a**", "two counts"),
        ("a{3,2}", "must not exceed"),
        (f"a{{{COUNT_MAX + 1}}}", f"nor either {COUNT_MAX}"),
        ("(?=a)b", "looking ahead"),
        ("(?<!a)b", "looking ahead"),
        (r"(a)\1", r"'\\1' is beyond it"),
        (r"\bword\b", r"'\\b' is beyond it"),
        (r"\p{L}", r"'\\p' is beyond it"),
        (r"\ud83d", "no character"),
        ("a^b", "at the beginning only"),
        ("a$b", "at the end only"),
        ("(^a)", "at the beginning only"),
        ("\\", "something is missing"),
        ("[]", "missing|none of"),
        (r"\0", "none of"),
        ("a" * (PATTERN_CHARS_MAX + 1), f"more than {PATTERN_CHARS_MAX}"),
        ("(" * 500 + ")" * 500, f"more than {PATTERN_DEPTH_MAX} groups"),
    ],
)
def test_what_no_grammar_can_say_is_refused_with_the_reason(pattern: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=f"cannot be followed: .*{problem}"):
        string_rule(pattern)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("email", "a.b+c@example.com", "a@b"),
        ("hostname", "node-1.example", "-a"),
        ("ipv4", "10.0.255.1", "10.0.256.1"),
        ("ipv6", "2001:db8:0:0:0:0:0:1", "2001"),
        ("duration", "P3DT4H", "3D"),
    ],
)
def test_formats_are_followed(vocabulary: Vocabulary, name: str, good: str, bad: str) -> None:
    assert name in FORMAT_PATTERNS
    grammar = grammar_of_schema({"type": "string", "format": name})

    assert follows(vocabulary, grammar, f'"{good}"')
    assert not follows(vocabulary, grammar, f'"{bad}"')
