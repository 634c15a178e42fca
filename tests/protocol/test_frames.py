"""Frames survive the wire, and whatever is not a frame is refused by name."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import CloseSession, Step, StepReply, check_step_payload, decode_frame, encode_frame
from meshnet_protocol.ids import NodeId, SessionId
from meshnet_protocol.messages import HopTiming

SESSION = SessionId("s1")


@given(st.integers(0, 2**31), st.integers(1, 64), st.booleans(), st.binary(max_size=4096))
def test_a_step_comes_out_as_it_went_in(position: int, count: int, wants_token: bool, payload: bytes) -> None:
    step = Step(session_id=SESSION, position=position, token_count=count, wants_token=wants_token)

    header, body = decode_frame(encode_frame(step, payload))

    assert header == step
    assert bytes(body) == payload


def test_a_reply_carries_the_timing_of_each_hop() -> None:
    timing = HopTiming(node_id=NodeId("n"), steps=1, queue_s=0.1, compute_s=0.2, link_s=0.3)
    reply = StepReply(session_id=SESSION, position=3, token_id=7, timings=(timing,))

    assert decode_frame(encode_frame(reply))[0] == reply


@given(st.binary(max_size=512))
def test_garbage_is_refused_and_never_raises_anything_else(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode_frame(data)


def test_a_header_nested_too_deeply_is_refused_like_any_garbage() -> None:
    nested = b"\x81\xa1x" + b"\x91" * 30_000 + b"\xc0"
    with pytest.raises(RemoteProtocolError, match="unreadable"):
        decode_frame(len(nested).to_bytes(4, "little") + nested)


@given(st.integers(0, 200))
def test_a_frame_cut_short_is_refused_or_has_a_shorter_payload(cut: int) -> None:
    frame = encode_frame(CloseSession(session_id=SESSION), b"x" * 8)
    try:
        header, body = decode_frame(frame[:cut])
    except RemoteProtocolError:
        return
    assert header == CloseSession(session_id=SESSION)
    assert len(body) <= 8


@pytest.mark.parametrize(("count", "size"), [(0, 0), (2, 16), (513, 513 * 16), (1, 17), (1, 0)])
def test_rows_outside_the_agreed_shape_are_refused(count: int, size: int) -> None:
    step = Step(session_id=SESSION, position=0, token_count=count, wants_token=True)
    with pytest.raises(RemoteProtocolError):
        check_step_payload(step, memoryview(bytes(size)), hidden_size=4)


def test_rows_of_the_agreed_shape_are_taken() -> None:
    step = Step(session_id=SESSION, position=0, token_count=2, wants_token=True)
    check_step_payload(step, memoryview(bytes(32)), hidden_size=4)
