"""Tickets: what a tracker allows the hops of one route to do for one request.

A ticket is a JWT signed with the tracker's Ed25519 key. It names the request's session, the model, every hop
with its address and span, how many sessions the request may open, how many tokens each may draw, and until when a
session may be opened by the tracker's clock. A hop checks it once per session and takes the plan only if it is,
word for word, the ticket's. Once open, a session may last as long as its tokens need.

A *pass* is the same kind of paper for another purpose: whoever shows it may read the model files of the mesh's nodes.
The tracker gives it to members, and to everybody where it has no keys, so that a node need not know who is a member.
"""

from typing import Literal, TypeVar

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jwt.types import Options

from meshnet_protocol.errors import ExpiredError, RemoteProtocolError
from meshnet_protocol.ids import ModelKey, SessionId
from meshnet_protocol.messages import Message, PlannedHop, RoutePlan

PASS_HEADER = "x-meshnet-pass"  # noqa: S105 - a header's name
ALGORITHM = "EdDSA"
TICKET_CHARS_MAX = 256 * 1024
ANSWER_SEPARATOR = "-"
# When a ticket ends is checked here, against the tracker's clock and not this machine's.
_DECODE_OPTIONS: Options = {"verify_exp": False, "require": ["exp"]}


class Ticket(Message, frozen=True, kw_only=True):
    """The claims. Field names are those on the wire; ``exp`` is JWT's own name for when it ends."""

    session: SessionId
    """Of the first answer; those of further answers have ``-1``, ``-2``, ... behind it."""
    model: ModelKey
    hops: tuple[PlannedHop, ...]
    sessions: int
    """How many sessions the request may open: one per answer."""
    draws: int
    """How many tokens each session may draw."""
    exp: int
    """Unix seconds by the tracker's clock: no session is opened later."""


class Pass(Message, frozen=True, kw_only=True):
    """The claims of a pass. It has no field of a ticket but ``exp``, so that neither can be used as the other."""

    reads: Literal["model files"]
    exp: int
    """Unix seconds by the tracker's clock: nothing is read with it later."""


class PassReply(Message, frozen=True, kw_only=True):
    """The signed pass, as the tracker hands it out."""

    text: str


Paper = TypeVar("Paper", Ticket, Pass)


def sign(paper: Ticket | Pass, key: Ed25519PrivateKey) -> str:
    return jwt.encode(msgspec.to_builtins(paper), key, algorithm=ALGORITHM)


def read_signed(text: str, key: Ed25519PublicKey, kind: type[Paper]) -> Paper:
    """What ``key`` has signed. Raises RemoteProtocolError; whether it has expired is not checked here."""
    what = kind.__name__.lower()
    if len(text) > TICKET_CHARS_MAX:
        raise RemoteProtocolError(f"a {what} of {len(text)} characters; {TICKET_CHARS_MAX} are allowed")
    try:
        return msgspec.convert(jwt.decode(text, key, algorithms=[ALGORITHM], options=_DECODE_OPTIONS), kind)
    except (jwt.PyJWTError, msgspec.ValidationError, RecursionError, ValueError, TypeError) as error:
        raise RemoteProtocolError(f"not a {what} of the tracker this node trusts: {error}") from error


def check_ticket(ticket: Ticket, plan: RoutePlan, *, now: float) -> None:
    """Raises ExpiredError or another RemoteProtocolError unless the ticket allows to open the plan's session now."""
    if now > ticket.exp:
        raise ExpiredError(f"the ticket expired {now - ticket.exp:.0f} s ago")
    if plan.model_key != ticket.model or plan.hops != ticket.hops:
        raise RemoteProtocolError("the plan is not the one its ticket was issued for")
    answer = _answer_number(plan.session_id, ticket.session)
    if answer is None or answer >= ticket.sessions:
        raise RemoteProtocolError(f"session {plan.session_id} is not one of the ticket's {ticket.sessions}")


def _answer_number(session_id: SessionId, first: SessionId) -> int | None:
    if session_id == first:
        return 0
    base, separator, number = session_id.rpartition(ANSWER_SEPARATOR)
    is_number = number.isascii() and number.isdigit() and len(number) < 10 and not number.startswith("0")
    return int(number) if separator and base == first and is_number else None
