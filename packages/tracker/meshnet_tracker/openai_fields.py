"""Single fields of an OpenAI request, read leniently where no meaning is lost. All raise MalformedRequestError.

Null means absent, integers may be written 5.0.
"""

import codecs
import json
import sys
from typing import Any

import msgspec

from meshnet_tracker.errors import MalformedRequestError

Json = dict[str, Any]

INTEGER_MAX = 2**63 - 1
INTEGER_DIGITS_MAX = 100
TOKENS_MAX = 2**31 - 1
NO_TOKEN_LIMIT = -1
BODY_CONTAINERS_MAX = 250_000
BODY_COMMAS_MAX = 2_000_000
"""Of any text in it too: more than prose of the size that is read has, and more data than any context has tokens."""
STOPS_MAX = 256
STOPS_CHARS_MAX = 16 * 1024
"""The head looks for every one of them at every token."""
BIASES_MAX = 2048
BIAS_MAX = 100.0


def decode_object(body: bytes) -> Json:
    """The body's fields without the nulls. Lone surrogates and bad UTF-8 fail here, as does NaN; a byte order mark,
    which Windows likes to write, does not."""
    _check_value_count(body)
    try:
        decoded = _decode(body.removeprefix(codecs.BOM_UTF8))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedRequestError(f"The body is not valid JSON: {error}.") from error
    if not isinstance(decoded, dict):
        raise MalformedRequestError("The body must be a JSON object.")
    return {name: value for name, value in decoded.items() if value is not None}


def _check_value_count(body: bytes) -> None:
    """Millions of tiny values in one body would hold up every other chat while they are made into objects."""
    containers = body.count(b"{") + body.count(b"[")
    for count, most, marks in (
        (containers, BODY_CONTAINERS_MAX, "braces and brackets"),
        (body.count(b","), BODY_COMMAS_MAX, "commas"),
    ):
        if count > most:
            raise MalformedRequestError(f"The body has {count} {marks}; at most {most} are read. Send less.")


def _decode(body: bytes) -> Any:
    """A number beyond what a float holds is valid JSON: it reads as the greatest one, for whoever looks at it.

    msgspec refuses such numbers, in fields that nobody reads, too.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError:  # the only one there is when no type is asked for: a number out of range
        rounded = json.loads(body.decode(), parse_float=_bounded, parse_int=_bounded_integer)
        return msgspec.json.decode(json.dumps(rounded))  # which is strict about all the rest again


def _bounded(text: str) -> float:
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _bounded_integer(text: str) -> int | float:
    return int(text) if len(text) <= INTEGER_DIGITS_MAX else _bounded(text)


def typed(fields: Json, name: str, kind: type, description: str) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise MalformedRequestError(f"'{name}' must be {description}.", param=name)
    return value


def flag(fields: Json, name: str) -> bool:
    return bool(typed(fields, name, bool, "a boolean"))


def number(fields: Json, name: str, low: float, high: float, *, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedRequestError(f"'{name}' must be a number.", param=name)
    if not low <= value <= high:
        raise MalformedRequestError(f"'{name}' must be between {low} and {high}, got {value}.", param=name)
    return float(value)


def integer(fields: Json, name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedRequestError(f"'{name}' must be an integer.", param=name)
    if not low <= value <= high:
        raise MalformedRequestError(f"'{name}' must be between {low} and {high}.", param=name)
    return value


def token_limit(fields: Json) -> int | None:
    """The smaller of the two names for it; far too much is as good as no limit, because the context caps it.

    llama.cpp and LM Studio write -1 for "no limit".
    """
    limits = []
    for name in ("max_tokens", "max_completion_tokens"):
        value = fields.get(name)
        is_beyond = isinstance(value, int | float) and value > TOKENS_MAX
        limit = TOKENS_MAX if is_beyond else integer(fields, name, NO_TOKEN_LIMIT, TOKENS_MAX)
        if limit is not None and limit != NO_TOKEN_LIMIT:
            limits.append(limit)
    return min(limits, default=None)


def stop_strings(fields: Json) -> list[str]:
    stop = fields.get("stop", [])
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise MalformedRequestError("'stop' must be a string or an array of strings.", param="stop")
    stops = [text for text in texts if text]
    if len(stops) > STOPS_MAX or sum(map(len, stops)) > STOPS_CHARS_MAX:
        raise MalformedRequestError(
            f"'stop' may have {STOPS_MAX} strings of {STOPS_CHARS_MAX} characters in all.", param="stop"
        )
    return stops


def logit_bias(fields: Json) -> dict[int, float]:
    biases = typed(fields, "logit_bias", dict, "an object") or {}
    if len(biases) > BIASES_MAX:
        raise MalformedRequestError(f"'logit_bias' has more than {BIASES_MAX} entries.", param="logit_bias")
    read: dict[int, float] = {}
    for key, value in biases.items():
        if not (key.isascii() and key.isdecimal()) or len(key) > len(str(TOKENS_MAX)) or int(key) > TOKENS_MAX:
            raise MalformedRequestError(f"'logit_bias' has the key {key!r}; keys are token ids.", param="logit_bias")
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > BIAS_MAX:
            raise MalformedRequestError(
                f"'logit_bias' of token {key} must be a number from -100 to 100.", param="logit_bias"
            )
        read[int(key)] = float(value)
    return read
