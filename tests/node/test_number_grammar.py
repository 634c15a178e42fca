"""Numbers between limits, against brute force. GBNF of this kind is a regular expression with blanks and quotes."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.engine.number_grammar import DIGITS_MAX, Limit, integer_rule, number_rule


def expression(rule: str | None) -> re.Pattern[str]:
    """The same rule as a regular expression."""
    if rule is None:
        return re.compile(r"(?!)")
    text = re.sub(
        r'"([^"]*)"', lambda literal: re.escape(literal[1]) if len(literal[1]) == 1 else f"(?:{literal[1]})", rule
    )
    return re.compile(text.replace(" ", ""))


def limit(value: int | str | None, *, is_open: bool = False) -> Limit | None:
    return None if value is None else Limit(Decimal(value), is_open)


def is_between(value: Decimal, low: Limit | None, high: Limit | None) -> bool:
    above = low is None or value > low.value or (value == low.value and not low.is_open)
    below = high is None or value < high.value or (value == high.value and not high.is_open)
    return above and below


limits = st.one_of(st.none(), st.builds(Limit, st.decimals(-1300, 1300, places=2), st.booleans()))
whole_limits = st.one_of(st.none(), st.builds(Limit, st.integers(-1300, 1300).map(Decimal), st.booleans()))


@given(st.one_of(limits, whole_limits), st.one_of(limits, whole_limits))
def test_whole_numbers_match_exactly_if_they_are_between_the_limits(low: Limit | None, high: Limit | None) -> None:
    rule = expression(integer_rule(low, high))

    for number in range(-1350, 1350):
        assert bool(rule.fullmatch(str(number))) == is_between(Decimal(number), low, high), number
    assert not any(rule.fullmatch(text) for text in ("", "-", "-0", "00", "01", "-01", "1.0", "1e3"))


@given(limits, limits, st.lists(st.decimals(-1400, 1400, places=4), max_size=200))
def test_numbers_match_exactly_if_they_are_between_the_limits(
    low: Limit | None, high: Limit | None, numbers: list[Decimal]
) -> None:
    rule = expression(number_rule(low, high))
    near = [bound.value + Decimal(step) / 1000 for bound in (low, high) if bound for step in range(-15, 16)]

    for number in [*numbers, *near]:
        if number.is_zero():
            continue  # minus zero is none of ours
        for text in (f"{number:.4f}", f"{number:.9f}", f"{number.normalize():f}"):
            assert bool(rule.fullmatch(text)) == is_between(number, low, high), text
    assert bool(rule.fullmatch("0")) == bool(rule.fullmatch("0.00")) == is_between(Decimal(0), low, high)
    assert not any(rule.fullmatch(text) for text in ("", "-", "00", "01", "1.", ".5", "-0"))


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 10**15), (-(10**15), -1), (10**29, None), (None, -(10**29)), (5, None), (None, 5), (123456789, 987654321)],
)
def test_large_and_missing_limits_hold_at_their_edges(low: int | None, high: int | None) -> None:
    for make in (integer_rule, number_rule):
        rule = expression(make(limit(low), limit(high)))
        for edge in (low, high):
            if edge is not None:
                for number in (edge - 1, edge, edge + 1):
                    matches = bool(rule.fullmatch(str(number)))
                    assert matches == is_between(Decimal(number), limit(low), limit(high)), number


def test_a_number_without_a_limit_ends_all_the_same() -> None:
    rule = expression(integer_rule(limit(3), None))

    assert rule.fullmatch("9" * DIGITS_MAX)
    assert not rule.fullmatch("9" * (DIGITS_MAX + 1))


def test_where_no_number_is_there_is_no_rule() -> None:
    assert integer_rule(limit(3), limit(2)) is None
    assert integer_rule(limit("0.2"), limit("0.8")) is None
    assert integer_rule(limit(2, is_open=True), limit(3, is_open=True)) is None
    assert number_rule(limit(2, is_open=True), limit(2)) is None
    assert number_rule(limit("0.5"), limit("0.25")) is None
    assert number_rule(limit(0), limit(0)) == '"0" ("." ("0"{1,16}))?'
