"""Grammars of numbers between two limits, digit by digit: GBNF knows no arithmetic.

A range of whole numbers falls apart into ranges of one length each, and such a range, digit by digit, into "the
least digit, then at least the rest", "anything between", and "the greatest digit, then at most the rest":

    7-123   ->   [7-9] | [1-9] [0-9] | "1" ([0-1] [0-9] | "2" [0-3])

Behind the decimal point it goes the same way, but that a number may end at any digit. A bounded number is written
without an exponent. Where a limit is missing, the number of digits ends the number, as it does in llama.cpp's own
grammars: a model that likes a digit would else repeat it for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

DIGITS_MAX = 16
"""Before the decimal point where no limit says more, and behind it behind those of a limit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """``is_open``: the number itself is not among those meant."""

    value: Decimal
    is_open: bool = False

    def lets_above(self, number: float) -> bool:
        return self.value < number or (self.value == number and not self.is_open)

    def lets_below(self, number: float) -> bool:
        return self.value > number or (self.value == number and not self.is_open)


def integer_rule(low: Limit | None, high: Limit | None) -> str | None:
    """The body of a rule for the whole numbers between the limits; None if there are none."""
    least, most = _open_ended(low, high)
    first = int(least.value.to_integral_value(ROUND_CEILING))
    first += least.is_open and first == least.value
    last = int(most.value.to_integral_value(ROUND_FLOOR))
    last -= most.is_open and last == most.value
    negative = _naturals(max(1, -last), -first)
    return _either([negative and f'"-" ({negative})', _naturals(max(0, first), last)])


def number_rule(low: Limit | None, high: Limit | None) -> str | None:
    """The body of a rule for the numbers between the limits; None if there are none."""
    least, most = _open_ended(low, high)
    zero, beneath_zero = Limit(Decimal(0)), Limit(Decimal(0), is_open=True)
    negative = _positive_numbers(max(_mirrored(most), beneath_zero, key=_strictness), _mirrored(least))
    positive = _positive_numbers(max(least, zero, key=_strictness), most)
    return _either([negative and f'"-" ({negative})', positive])


def _open_ended(low: Limit | None, high: Limit | None) -> tuple[Limit, Limit]:
    """Both limits; one that is missing is the greatest number of the digits there are."""
    digits = max([DIGITS_MAX, *(limit.value.adjusted() + 2 for limit in (low, high) if limit is not None)])
    beyond = Decimal(10) ** digits
    return low or Limit(-beyond, is_open=True), high or Limit(beyond, is_open=True)


def _mirrored(limit: Limit) -> Limit:
    return Limit(-limit.value, limit.is_open)


def _strictness(limit: Limit) -> tuple[Decimal, bool]:
    """Of lower limits, what is greater lets less through."""
    return limit.value, limit.is_open


def _naturals(first: int, last: int) -> str | None:
    """Whole numbers that are not negative, from ``first`` to ``last``."""
    rules = []
    while first <= last:
        digits = len(str(first))
        end = min(last, 10**digits - 1)
        if digits > 1 and first == 10 ** (digits - 1) and end < last:  # all numbers of this length, and maybe longer
            longest = len(str(last)) if last == 10 ** len(str(last)) - 1 else len(str(last)) - 1
            end = 10**longest - 1
            rules.append(f"[1-9] [0-9]{{{digits - 1},{longest - 1}}}")
        else:
            rules.append(_of_one_length(str(first), str(end)))
        first = end + 1
    return _either(rules)


def _of_one_length(first: str, last: str) -> str:
    """Digits from ``first`` to ``last``, which are equally many."""
    if not first:
        return ""
    rest = len(first) - 1
    if set(first[1:]) <= {"0"} and set(last[1:]) <= {"9"}:
        return _digit(int(first[0]), int(last[0])) + _any_digits(rest, rest)
    if first[0] == last[0]:
        return f'"{first[0]}" {_grouped(_of_one_length(first[1:], last[1:]))}'
    least, most = int(first[0]), int(last[0])
    rules = []
    if set(first[1:]) - {"0"}:
        rules.append(f'"{least}" {_grouped(_of_one_length(first[1:], "9" * rest))}')
        least += 1
    if set(last[1:]) - {"9"}:
        rules.append(f'"{most}" {_grouped(_of_one_length("0" * rest, last[1:]))}')
        most -= 1
    if least <= most:
        rules.append(_digit(least, most) + _any_digits(rest, rest))
    return " | ".join(rules)


def _positive_numbers(low: Limit, high: Limit) -> str | None:
    """Numbers between two limits of which none is negative."""
    (first, low_digits), (last, high_digits) = _parts(low), _parts(high)
    if (low.value, low.is_open) > (high.value, False) or (low.value == high.value and high.is_open):
        return None
    above = _Fraction(low_digits, None, low.is_open, False)
    below = _Fraction(None, high_digits, False, high.is_open)
    if first == last:
        both = _Fraction(low_digits, high_digits, low.is_open, high.is_open)
        return _with_fraction(str(first), both)
    between = _naturals(first + 1, last - 1)
    return _either(
        [
            _with_fraction(str(first), above),
            between and f'({between}) ("." [0-9]{{1,{DIGITS_MAX}}})?',
            _with_fraction(str(last), below),
        ]
    )


def _parts(limit: Limit) -> tuple[int, str]:
    """The whole number before the point, and the digits behind it, without zeros at their end."""
    whole, _, digits = f"{limit.value:f}".partition(".")
    return int(whole), digits.rstrip("0")


@dataclass(frozen=True, slots=True)
class _Fraction:
    """Digits behind a point that are between two others: None where any are, on that side."""

    low: str | None
    high: str | None
    is_low_open: bool
    is_high_open: bool

    @property
    def may_end(self) -> bool:
        """No digits at all, which are as good as zeros, are between them."""
        return (self.low is None or (self.low == "" and not self.is_low_open)) and not self._has_nothing_below

    @property
    def _has_nothing_below(self) -> bool:
        return self.high == "" and self.is_high_open

    def behind(self, digit: int) -> "_Fraction | None":
        """What may follow this digit; None if it may not stand here."""
        low, high = self.low, self.high
        if low is not None:
            least = int(low[:1] or 0)
            if digit < least:
                return None
            low = None if digit > least or (low == "" and not self.is_low_open) else low[1:]
        if high is not None:
            most = int(high[:1] or 0)
            if digit > most or self._has_nothing_below:
                return None
            high = None if digit < most else high[1:]
        return _Fraction(low, high, self.is_low_open, self.is_high_open)

    def rule(self) -> str | None:
        """For the digits, one at least; None if there are none."""
        if self.low in (None, "") and self.high in (None, ""):
            return self._endless_rule()
        rules = []
        digit = 0
        while digit <= 9:
            rest, first = self.behind(digit), digit
            while digit < 9 and self.behind(digit + 1) == rest:
                digit += 1
            digit += 1
            if rest is None:
                continue
            more = rest.rule()
            if more is not None:
                rules.append(_digit(first, digit - 1) + f" ({more})" + ("?" if rest.may_end else ""))
            elif rest.may_end:
                rules.append(_digit(first, digit - 1))
        return _either(rules)

    def _endless_rule(self) -> str | None:
        """Where both limits are used up: any digits, only zeros, anything but only zeros."""
        needs_more = self.low == "" and self.is_low_open
        if self.high == "":
            return None if needs_more or self.is_high_open else f'"0"{{1,{DIGITS_MAX}}}'
        if needs_more:
            return f'"0"{{0,{DIGITS_MAX}}} [1-9] [0-9]{{0,{DIGITS_MAX}}}'
        return f"[0-9]{{1,{DIGITS_MAX}}}"


def _with_fraction(whole: str, fraction: _Fraction) -> str | None:
    digits = fraction.rule()
    if digits is None:
        return f'"{whole}"' if fraction.may_end else None
    return f'"{whole}" ("." ({digits})){"?" if fraction.may_end else ""}'


def _digit(first: int, last: int) -> str:
    return f"[{first}-{last}]" if first < last else f'"{first}"'


def _any_digits(least: int, most: int) -> str:
    return f" [0-9]{{{least},{most}}}" if most else ""


def _grouped(rule: str) -> str:
    return f"({rule})" if "|" in rule else rule


def _either(rules: Sequence[str | None]) -> str | None:
    return " | ".join(rule for rule in rules if rule) or None
