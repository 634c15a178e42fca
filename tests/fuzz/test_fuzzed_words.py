"""Whatever bytes a peer sends, what comes out is a value or one named refusal. Seeded, so that a failure repeats."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import (
    CloseSession,
    FrameHeader,
    Greeting,
    OpenSession,
    SessionFailed,
    SessionOpened,
    Step,
    StepReply,
    check_step_payload,
    decode_frame,
    encode_frame,
)
from meshnet_protocol.ids import Incarnation, ModelKey, NodeId, SessionId, WalletId
from meshnet_protocol.messages import HeadRequest, Heartbeat, Leave, PlannedHop, Registration, RoutePlan, Sampling
from meshnet_protocol.proofs import Proof
from meshnet_protocol.tickets import ALGORITHM, Ticket, check_ticket, read_signed
from meshnet_tracker.errors import RegistrationRefusedError
from meshnet_tracker.fleet import (
    Fleet,
    FleetEvent,
    HeartbeatReceived,
    NodeFaulted,
    NodeLeft,
    NodeRegistered,
    NodeSuspected,
    Tick,
)
from meshnet_tracker.registration import check_registration
from meshnet_tracker.testing import make_registration
from meshnet_tracker.ticket_office import TicketOffice

FUZZ = settings(max_examples=300, deadline=None, derandomize=True)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
NOW = 1_800_000_000.0
HOPS = (PlannedHop(node_id=NodeId("a.w@0-29"), url="http://192.0.2.1:1", start_layer=0, end_layer=29),)
PLAN = RoutePlan(session_id=SessionId("s"), model_key=ModelKey("m@f"), hops=HOPS)
TICKETED = TicketOffice(KEY).issue(PLAN, HeadRequest(), now=NOW)

FRAMES: list[FrameHeader] = [
    Greeting(node_id=NodeId("n"), fingerprint="f", hidden_size=576),
    OpenSession(plan=TICKETED, hop_index=0, sampling=Sampling(seed=7), prefix=(b"12345678",)),
    SessionOpened(session_id=SessionId("s"), context_tokens=512, held_tokens=3),
    Step(session_id=SessionId("s"), position=3, token_count=1, wants_token=True),
    StepReply(session_id=SessionId("s"), position=3, token_id=5, timings=()),
    SessionFailed(session_id=SessionId("s"), code="link", message="gone", culprit=NodeId("n")),
    CloseSession(session_id=SessionId("s"), remember=(b"12345678",)),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """``whole`` with bytes overwritten, taken out, put in, or its end cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.binary(max_size=4))
        data[at : at + draw(st.integers(0, 6))] = piece
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_kind_of_frame_comes_out_as_it_went_in(frame: FrameHeader) -> None:
    header, payload = decode_frame(encode_frame(frame, b"rows"))
    assert header == frame
    assert bytes(payload) == b"rows"


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_damaged_frame_is_a_frame_or_a_named_refusal(frame: FrameHeader) -> None:
    whole = encode_frame(frame, bytes(16))

    @FUZZ
    @given(damaged(whole))
    def check(data: bytes) -> None:
        with suppress(RemoteProtocolError):
            header, payload = decode_frame(data)
            if isinstance(header, Step):
                check_step_payload(header, payload, hidden_size=4)

    check()


@FUZZ
@given(damaged(TICKETED.ticket.encode()))
def test_a_damaged_ticket_is_refused_or_says_the_very_same(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        ticket = read_signed(data.decode("latin-1"), KEY.public_key(), Ticket)
        assert ticket == read_signed(TICKETED.ticket, KEY.public_key(), Ticket), (
            "the spare bits of base64 may differ, no more"
        )


@FUZZ
@given(st.dictionaries(st.sampled_from(["session", "model", "hops", "sessions", "draws", "exp", "nbf", "iat"]), JSON))
def test_claims_of_any_kind_are_a_ticket_or_refused_even_under_the_right_signature(claims: dict[str, Any]) -> None:
    try:
        text = jwt.encode(claims, KEY, algorithm=ALGORITHM)
    except (TypeError, ValueError):
        return  # no JWT can say this
    with suppress(RemoteProtocolError):
        check_ticket(read_signed(text, KEY.public_key(), Ticket), TICKETED, now=NOW)


@FUZZ
@given(st.dictionaries(st.sampled_from(["boot", "sequence", "signature", "join"]), st.text(max_size=30)))
def test_headers_of_any_kind_are_a_proof_or_refused(parts: dict[str, str]) -> None:
    with suppress(RemoteProtocolError):
        Proof.from_headers({f"x-meshnet-{name}": value for name, value in parts.items()})


REGISTRATION = msgspec.to_builtins(make_registration("box", "0-9"))


@FUZZ
@given(
    st.sampled_from([*REGISTRATION, "model.layer_count", "model.name", "shard.last", "shard.first"]),
    JSON | st.just(2**63) | st.just(float("nan")) | st.just("\x00\n"),
)
def test_an_account_of_a_node_with_anything_in_a_field_stands_or_is_refused(field: str, value: Any) -> None:
    account = msgspec.json.decode(msgspec.json.encode(REGISTRATION))
    outer, _, inner = field.partition(".")
    if inner:
        account[outer][inner] = value
    else:
        account[outer] = value
    try:
        registration = msgspec.json.decode(msgspec.json.encode(account), type=Registration)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return
    fleet = Fleet()
    with suppress(RegistrationRefusedError):
        check_registration(registration)
        fleet.handle(NodeRegistered(registration), 0.0)
        check_invariants(fleet)


NAMES = st.sampled_from(["a", "b"])
WALLETS = st.sampled_from(["w" * 64, "x" * 64, "w" * 12 + "y" * 52])
"""The third begins like the first: their node ids would be the same."""
SHARDS = st.sampled_from(["0-39", "0-21", "22-39", "5-30"])
RUNS = st.sampled_from(["first", "second"])


@st.composite
def accounts(draw: st.DrawFn) -> Registration:
    return make_registration(draw(NAMES), draw(SHARDS), wallet=draw(WALLETS), incarnation=draw(RUNS))


@st.composite
def events(draw: st.DrawFn) -> FleetEvent:
    of = draw(accounts())
    beat = Heartbeat(
        node_id=of.node_id,
        incarnation=Incarnation(draw(RUNS)),
        queue_depth=draw(st.integers(-5, 2**40)),
        entry_layers=draw(st.lists(st.integers(-3, 50), max_size=4).map(tuple)),
        is_draining=draw(st.booleans()),
    )
    possible: Sequence[FleetEvent] = (
        NodeRegistered(of),
        HeartbeatReceived(beat),
        NodeLeft(Leave(node_id=of.node_id, incarnation=Incarnation(draw(RUNS)))),
        NodeSuspected(of.node_id),
        NodeFaulted(of.node_id),
        Tick(),
    )
    return draw(st.sampled_from(possible))


@FUZZ
@given(st.lists(st.tuples(events(), st.floats(0, 5)), max_size=30))
def test_any_sequence_of_events_leaves_a_registry_that_agrees_with_itself(
    story: list[tuple[FleetEvent, float]],
) -> None:
    fleet, now = Fleet(), 0.0
    for event, passed_s in story:
        now += passed_s
        with suppress(RegistrationRefusedError):
            fleet.handle(event, now)
        check_invariants(fleet)


def check_invariants(fleet: Fleet) -> None:
    nodes = list(fleet.nodes())
    machines = [(node.registration.wallet, node.registration.instance) for node in nodes]
    assert len(set(machines)) == len(machines), "a machine is there once"
    for node in nodes:
        assert fleet.node(node.node_id) is node
        assert node.node_id == node.registration.node_id
        assert not fleet.has_departed(node.node_id)
        assert node.queue_depth >= 0
        assert all(node.shard.first <= layer <= node.shard.last for layer in node.entry_layers)
        model = fleet.model(node.model_key)
        assert model is not None
        assert model.nodes[node.node_id] is node
    for model in fleet.models():
        assert all(fleet.node(node_id) is node for node_id, node in model.nodes.items())
        ends = [node.shard.last for node in model.nodes.values() if not node.is_draining]
        assert {end: ends.count(end) for end in ends} == dict(model.shard_ends)


def test_two_wallets_whose_names_begin_alike_cannot_take_each_others_place() -> None:
    fleet = Fleet()
    fleet.handle(NodeRegistered(make_registration("a", "0-39", wallet="w" * 64)), 0.0)
    with pytest.raises(RegistrationRefusedError):
        fleet.handle(NodeRegistered(make_registration("a", "0-39", wallet="w" * 12 + "y" * 52)), 1.0)
    held = next(fleet.nodes()).registration
    assert held.wallet == WalletId("w" * 64)
