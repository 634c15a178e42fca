"""What a hop lets in: the plan its tracker signed, once, in time, and no more tokens than allowed."""

import base64
import json
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_node.errors import TicketError, TrackerKeyError
from meshnet_node.ticket_gate import TicketGate
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_protocol.ids import ModelKey, NodeId, SessionId
from meshnet_protocol.messages import PROTOCOL_VERSION, HeadRequest, PlannedHop, RoutePlan, TrackerGreeting
from meshnet_protocol.proofs import public_key_text
from meshnet_tracker.ticket_office import ANSWER_S_MAX, OPENING_S_MAX, TicketOffice

TRACKER = Ed25519PrivateKey.generate()
STRANGER = Ed25519PrivateKey.generate()
NOW = 1_800_000_000.0


class Clock:
    """This machine's own clock, far from the tracker's."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def greeting_of(key: Ed25519PrivateKey, **fields: Any) -> TrackerGreeting:
    said: dict[str, Any] = {"tracker_key": public_key_text(key), "boot": "boot", "time_s": NOW}
    return TrackerGreeting(**(said | fields))


def gate(clock: Clock | None = None, *, allows_direct: bool = False, greets: bool = True) -> TicketGate:
    trust = TrackerTrust(clock=clock or Clock())
    if greets:
        trust.greet(greeting_of(TRACKER))
    return TicketGate(trust, allows_direct=allows_direct)


def plan(session: str = "s", *, first_url: str = "http://192.0.2.1:1", cut: int = 16) -> RoutePlan:
    hops = (
        PlannedHop(node_id=NodeId("a.w@0-16"), url=first_url, start_layer=0, end_layer=cut),
        PlannedHop(node_id=NodeId("b.w@0-29"), url="http://192.0.2.2:1", start_layer=cut + 1, end_layer=29),
    )
    return RoutePlan(session_id=SessionId(session), model_key=ModelKey("m@f"), hops=hops)


def ticketed(at: RoutePlan | None = None, *, key: Ed25519PrivateKey = TRACKER, **request: Any) -> RoutePlan:
    return TicketOffice(key).issue(at or plan(), HeadRequest(**request), now=NOW)


def open_once(at: TicketGate, wanted: RoutePlan) -> None:
    with at.claim(wanted) as permit:
        permit.is_spent = True


def test_the_plan_that_was_signed_is_let_in() -> None:
    with gate().claim(ticketed(max_tokens=7)) as permit:
        assert permit.draws == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"hops": plan(first_url="http://192.0.2.66:1").hops},
        {"hops": plan(cut=15).hops},
        {"hops": plan().hops[::-1]},
        {"hops": plan().hops[:1]},
        {"hops": (*plan().hops, plan().hops[0])},
        {"model_key": ModelKey("m@other")},
        {"session_id": SessionId("another")},
        {"session_id": SessionId("s-1")},
        {"session_id": SessionId("s-01")},
        {"session_id": SessionId("s-0")},
        {"session_id": SessionId("s--1")},
        {"session_id": SessionId("s-²")},
    ],
)
def test_a_plan_that_differs_from_its_ticket_in_anything_is_refused(changes: dict[str, Any]) -> None:
    changed = msgspec.structs.replace(ticketed(), **changes)
    with pytest.raises(TicketError, match=r"not the one|not one of"), gate().claim(changed):
        pass


def test_each_answer_of_a_request_has_one_session() -> None:
    at = gate()
    wanted = ticketed(n=3)
    for session in ("s", "s-1", "s-2"):
        open_once(at, msgspec.structs.replace(wanted, session_id=SessionId(session)))
    with pytest.raises(TicketError, match="not one of"):
        open_once(at, msgspec.structs.replace(wanted, session_id=SessionId("s-3")))
    for session in ("s", "s-1", "s-2"):
        with pytest.raises(TicketError, match="opened before"):
            open_once(at, msgspec.structs.replace(wanted, session_id=SessionId(session)))


def test_several_prompts_have_a_session_for_each_of_their_answers() -> None:
    at = gate()
    wanted = ticketed(prompts=["a", "b"], n=2)
    open_once(at, msgspec.structs.replace(wanted, session_id=SessionId("s-3")))
    with pytest.raises(TicketError):
        open_once(at, msgspec.structs.replace(wanted, session_id=SessionId("s-4")))


def test_a_session_cannot_be_open_twice_at_once() -> None:
    at, wanted = gate(), ticketed()
    with at.claim(wanted), pytest.raises(TicketError, match="opened before"), at.claim(wanted):
        pass


def test_a_session_that_found_no_room_may_be_tried_again() -> None:
    at, wanted = gate(), ticketed()
    with at.claim(wanted):
        pass
    open_once(at, wanted)
    with pytest.raises(TicketError, match="opened before"):
        open_once(at, wanted)


def test_a_ticket_ends_by_the_trackers_clock_whatever_this_machines_says() -> None:
    clock = Clock()
    at, wanted = gate(clock), ticketed()
    clock.now += OPENING_S_MAX
    with at.claim(wanted):
        pass
    clock.now += 1
    with pytest.raises(TicketError, match="expired"), at.claim(wanted):
        pass


def test_further_answers_have_longer() -> None:
    clock = Clock()
    at, wanted = gate(clock), ticketed(n=2)
    clock.now += OPENING_S_MAX + ANSWER_S_MAX
    with at.claim(msgspec.structs.replace(wanted, session_id=SessionId("s-1"))):
        pass


def test_used_tickets_are_remembered_no_longer_than_they_last() -> None:
    clock = Clock()
    trust = TrackerTrust(clock=clock)
    trust.greet(greeting_of(TRACKER))
    at = TicketGate(trust, allows_direct=False)
    for number in range(50):
        open_once(at, TicketOffice(TRACKER).issue(plan(f"n{number}"), HeadRequest(), now=trust.now()))
        clock.now += 10
    assert len(at._spent) <= OPENING_S_MAX / 10 + 2


def unsigned(wanted: RoutePlan) -> str:
    claims = wanted.ticket.split(".")[1]
    header = base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": "JWT"}).encode()).rstrip(b"=").decode()
    return f"{header}.{claims}."


def with_claims(**claims: Any) -> str:
    return jwt.encode(claims, TRACKER, algorithm="EdDSA")


@pytest.mark.parametrize(
    "ticket",
    [
        "garbage",
        "a.b.c",
        "\ud83d.b.c",
        "x" * 300_000,
        unsigned(ticketed()),
        ticketed(key=STRANGER).ticket,
        ticketed().ticket[:-8] + "AAAAAAA=",
        jwt.encode({"exp": 2e9}, public_key_text(TRACKER), algorithm="HS256"),
        with_claims(exp=2_000_000_000),
        with_claims(session="s", model="m@f", hops="none", sessions=1, draws=1, exp=2_000_000_000),
        with_claims(session="s", model="m@f", hops=[], sessions=1, draws=1),
    ],
)
def test_what_is_not_signed_by_the_tracker_is_refused_whatever_it_is(ticket: str) -> None:
    forged = msgspec.structs.replace(plan(), ticket=ticket)
    with pytest.raises(TicketError), gate().claim(forged):
        pass


def test_without_a_ticket_nothing_runs_and_the_answer_says_where_to_go() -> None:
    with pytest.raises(TicketError, match="send chats to the tracker"), gate().claim(plan()):
        pass


def test_a_node_that_has_not_met_its_tracker_takes_nothing() -> None:
    with pytest.raises(TicketError, match="not met"), gate(greets=False).claim(ticketed()):
        pass


def test_on_loopback_a_node_runs_routes_of_itself_alone_and_no_others() -> None:
    at = gate(allows_direct=True)
    alone = msgspec.structs.replace(plan(), hops=plan().hops[:1])
    with at.claim(alone), at.claim(alone):
        pass
    with pytest.raises(TicketError), at.claim(plan()):
        pass


def test_a_pinned_key_turns_every_other_tracker_away() -> None:
    trust = TrackerTrust(pinned_key=public_key_text(TRACKER))
    with pytest.raises(TrackerKeyError, match="--tracker-key"):
        trust.greet(greeting_of(STRANGER))
    assert trust.key is None
    trust.greet(greeting_of(TRACKER))
    assert trust.key is not None


def test_a_tracker_of_another_version_or_without_a_key_is_turned_away() -> None:
    with pytest.raises(TrackerKeyError, match="update the older"):
        TrackerTrust().greet(greeting_of(TRACKER, protocol_version=PROTOCOL_VERSION + 1))
    with pytest.raises(TrackerKeyError, match="no key"):
        TrackerTrust().greet(greeting_of(TRACKER, tracker_key="none"))


def test_sequences_rise_even_when_the_trackers_clock_is_set_back() -> None:
    clock = Clock()
    trust = TrackerTrust(clock=clock)
    trust.greet(greeting_of(TRACKER))
    first = trust.next_sequence()
    trust.set_time(NOW - 3600)
    assert trust.next_sequence() == first + 1
    assert trust.now() == NOW - 3600
