"""Regular expressions of JSON schemas, as grammars of the JSON strings that match them.

What matches is the text that a string stands for, and what is drawn is how JSON writes it: a quote, a backslash or a
line end is two characters there. So each character of an expression becomes a set of code points, and each set those
that stand for themselves, and those that are written with a backslash. As the standard has it, an expression may match
anywhere in the text unless it says ``^`` and ``$``.

Looking ahead or back, back references and word boundaries are beyond what a grammar can say, and are refused.
"""

import re
from collections.abc import Iterable
from itertools import pairwise

from meshnet_node.engine.repetition import repetition
from meshnet_node.engine.schema_keywords import shown
from meshnet_node.errors import GrammarError

PATTERN_DEPTH_MAX = 40
PATTERN_CHARS_MAX = 4000
COUNT_MAX = 20_000
RULE_CHARS_MAX = 256 * 1024
"""As many as a whole grammar may have."""

CodePoints = tuple[tuple[int, int], ...]
"""Ranges, both ends included, in order, with gaps between."""

_LAST = 0x10FFFF
_DIGITS: CodePoints = ((0x30, 0x39),)
_WORD: CodePoints = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: CodePoints = ((0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20))
_LINE_END: CodePoints = ((0x0A, 0x0A), (0x0D, 0x0D))
_PLAIN: CodePoints = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, _LAST))
"""What stands for itself in a JSON string."""
_WRITTEN_AS = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0x00}
_COUNT = re.compile(r"\{(\d{1,6})(,(\d{0,6}))?\}")
_HEXADECIMAL = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
_GROUP = re.compile(r"\(\?(:|P?<[A-Za-z_]\w*>)")

FORMAT_PATTERNS = {
    "email": r"^[A-Za-z0-9._%+\-]{1,64}@([A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}$",
    "hostname": r"^([A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?\.){0,8}[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?$",
    "ipv4": r"^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$",
    "ipv6": r"^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$",
    "duration": r"^P(\d{1,6}D|T\d{1,6}[HMS]|\d{1,6}DT\d{1,6}[HMS])$",
}
"""The formats OpenAI knows, beside those the converter has rules for. Of several forms of one thing, one is enough."""


def string_rule(pattern: str) -> str:
    """The body of a rule for JSON strings that match. Raises GrammarError."""
    try:
        return _Parser(pattern).read()
    except _PatternError as problem:
        raise GrammarError(
            f"the JSON schema has the pattern {shown(pattern)}, which cannot be followed: {problem}"
        ) from problem


class _PatternError(Exception):
    """Says what of the expression is beyond a grammar, or wrong."""


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def read(self) -> str:
        if len(self._pattern) > PATTERN_CHARS_MAX:
            raise _PatternError(f"it has more than {PATTERN_CHARS_MAX} characters")
        body = self._alternatives(depth=0)
        if self._at < len(self._pattern):
            raise _PatternError("it has a ')' too many")
        return f'"\\"" ({body}) "\\""'

    def _alternatives(self, *, depth: int) -> str:
        if depth > PATTERN_DEPTH_MAX:
            raise _PatternError(f"it nests more than {PATTERN_DEPTH_MAX} groups")
        rules = [self._sequence(depth)]
        while self._take("|"):
            rules.append(self._sequence(depth))
        return " | ".join(rules)

    def _sequence(self, depth: int) -> str:
        """Up to the next ``|`` or ``)``. Only outside of groups, a sequence has a beginning and an end of its own."""
        anything = f"({_rule_of(((0, _LAST),))})*"
        rules = [] if depth or self._take("^") else [anything]
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            if not depth and self._take("$"):
                if self._at < len(self._pattern) and self._pattern[self._at] != "|":
                    raise _PatternError("'$' can stand at the end only")
                return " ".join(rules) or '""'
            rules.append(self._counted(self._atom(depth)))
        if not depth:
            rules.append(anything)
        return " ".join(rules) or '""'

    def _counted(self, rule: str) -> str:
        count = self._count()
        if count is None:
            return rule
        self._take("?")  # as few as possible: of what matches in all, that changes nothing
        if self._count() is not None:
            raise _PatternError("it has two counts in a row")
        counted = repetition(rule, *count) or '""'
        if len(counted) > RULE_CHARS_MAX:  # counts within counts multiply
            raise _PatternError("its counts make too much of it")
        return counted

    def _count(self) -> tuple[int, int | None] | None:
        for sign, low, high in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return low, high
        count = _COUNT.match(self._pattern, self._at)
        if count is None:
            return None
        self._at = count.end()
        least = int(count[1])
        most = least if count[2] is None else int(count[3]) if count[3] else None
        if max(least, most or 0) > COUNT_MAX or (most is not None and least > most):
            raise _PatternError(f"of {count[0]} the first number must not exceed the second, nor either {COUNT_MAX}")
        return least, most

    def _atom(self, depth: int) -> str:
        """One character, set or group, as one term of a rule."""
        character = self._next()
        match character:
            case "(":
                return self._group(depth)
            case "[":
                return _term_of(self._set())
            case ".":
                return _term_of(_all_but(_LINE_END))
            case "\\":
                return _term_of(self._escaped())
            case "^" | "$":
                raise _PatternError(f"'{character}' can stand at the {'beginning' if character == '^' else 'end'} only")
            case "*" | "+" | "?":
                raise _PatternError(f"there is nothing before '{character}'")
        return _term_of(_one(ord(character)))

    def _group(self, depth: int) -> str:
        if self._pattern.startswith("?", self._at):
            group = _GROUP.match(self._pattern, self._at - 1)
            if group is None:
                raise _PatternError("a group that begins with '(?' is beyond it, looking ahead or back among them")
            self._at = group.end()
        body = self._alternatives(depth=depth + 1)
        if not self._take(")"):
            raise _PatternError("a ')' is missing")
        return f"({body})"

    def _set(self) -> CodePoints:
        is_negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            first = self._member()
            is_range = self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)
            if is_range and len(first) == 1 and first[0][0] == first[0][1]:
                self._at += 1
                last = self._member()
                if len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < first[0][0]:
                    raise _PatternError("it has a range in brackets that goes backwards")
                ranges.append((first[0][0], last[0][0]))
            else:
                ranges.extend(first)
        return _all_but(_united(ranges)) if is_negated else _united(ranges)

    def _member(self) -> CodePoints:
        character = self._next()
        if character != "\\":
            return _one(ord(character))
        if self._take("b"):
            return _one(0x08)
        return self._escaped()

    def _escaped(self) -> CodePoints:
        if number := _HEXADECIMAL.match(self._pattern, self._at):
            self._at = number.end()
            code_point = int(number[1] or number[2] or number[3], 16)
            if code_point > _LAST or 0xD800 <= code_point <= 0xDFFF:
                raise _PatternError(f"'\\{number[0]}' is no character")
            return _one(code_point)
        character = self._next()
        known = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
        if character.lower() in known:
            return known[character] if character.islower() else _all_but(known[character.lower()])
        if character in _CONTROLS:
            return _one(_CONTROLS[character])
        if character.isalnum():
            raise _PatternError(f"'\\{character}' is beyond it; write the characters out, in brackets")
        return _one(ord(character))

    def _next(self) -> str:
        if self._at == len(self._pattern):
            raise _PatternError("something is missing at its end")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, text: str) -> bool:
        is_there = self._pattern.startswith(text, self._at)
        self._at += len(text) * is_there
        return is_there


def _one(code_point: int) -> CodePoints:
    return ((code_point, code_point),)


def _united(ranges: Iterable[tuple[int, int]]) -> CodePoints:
    united: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if united and first <= united[-1][1] + 1:
            united[-1] = (united[-1][0], max(united[-1][1], last))
        else:
            united.append((first, last))
    return tuple(united)


def _all_but(ranges: CodePoints) -> CodePoints:
    edges = [(0, -1), *ranges, (_LAST + 1, _LAST)]
    return tuple((one[1] + 1, other[0] - 1) for one, other in pairwise(edges) if one[1] + 1 < other[0])


def _common(one: CodePoints, other: CodePoints) -> CodePoints:
    return tuple((max(a, c), min(b, d)) for a, b in one for c, d in other if max(a, c) <= min(b, d))


def _term_of(ranges: CodePoints) -> str:
    rule = _rule_of(ranges)
    return f"({rule})" if " " in rule else rule


def _rule_of(ranges: CodePoints) -> str:
    """As JSON writes these characters. Control characters without a letter of their own are left out."""
    plain = "".join(
        _spelled(first) if first == last else f"{_spelled(first)}-{_spelled(last)}"
        for first, last in _common(ranges, _PLAIN)
    )
    letters = "".join(
        _spelled(ord(letter)) for code_point, letter in _WRITTEN_AS.items() if _common(ranges, _one(code_point))
    )
    rules = ([f"[{plain}]"] if plain else []) + ([f'"\\\\" [{letters}]'] if letters else [])
    if not rules:
        raise _PatternError("it asks for characters that there are none of")
    return " | ".join(rules)


def _spelled(code_point: int) -> str:
    character = chr(code_point)
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{code_point:02X}" if code_point < 0x80 else f"\\U{code_point:08X}"
