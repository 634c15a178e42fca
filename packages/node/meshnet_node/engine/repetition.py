"""Repetitions as grammars count them: llama.cpp makes rules of each one, and takes 2,000 of them at once."""

REPETITION_MAX = 500
"""Of one pair of braces."""


def repetition(rule: str, low: int, high: int | None) -> str:
    """``rule`` from ``low`` to ``high`` times; None: without end."""
    times, more = divmod(low, REPETITION_MAX)
    whole = [f"{rule}{{{REPETITION_MAX}}}"] * times + ([f"{rule}{{{more}}}"] if more else [])
    optional = f"{rule}*" if high is None else _at_most(rule, high - low)
    return " ".join([*whole, optional] if optional else whole)


def _at_most(rule: str, count: int) -> str:
    """Nested, so that there is one way only to read what it matches, however many groups it is of."""
    if count <= 1:
        return f"{rule}?" if count else ""
    if count < REPETITION_MAX:
        return f"{rule}{{0,{count}}}"
    beyond = _at_most(rule, count - REPETITION_MAX)
    return f"({rule}{{0,{REPETITION_MAX - 1}}} | {rule}{{{REPETITION_MAX}}} {beyond})"
