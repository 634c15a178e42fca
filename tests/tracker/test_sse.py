"""The event stream parser: however the network cuts the bytes, the events are the same."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet_protocol.errors import RemoteProtocolError
from meshnet_tracker import sse
from meshnet_tracker.sse import COMMENT, EventParser, write_event

# On a busy machine an example may take long without anything being wrong.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

payloads = st.lists(st.binary(min_size=1, max_size=30).filter(lambda data: not set(data) & set(b"\r\n")), max_size=8)


@given(payloads, st.lists(st.integers(0, 300)), st.sampled_from([b"\n", b"\r\n"]))
def test_events_do_not_depend_on_how_the_stream_was_cut(written: list[bytes], cuts: list[int], line_end: bytes) -> None:
    stream = b"".join(COMMENT + b"event: x\n" + write_event(payload) for payload in written)
    stream = stream.replace(b"\n", line_end)
    edges = [0, *sorted(cuts), len(stream)]
    parser = EventParser()

    read = [event for a, b in pairwise(edges) for event in parser.feed(stream[a:b])]

    assert read == written


def test_data_lines_of_one_event_join_and_an_event_without_data_is_none() -> None:
    assert EventParser().feed(b"data: a\ndata:b\n\ndata:\n\n: c\n\n") == [b"a\nb"]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)
    parser = EventParser()
    assert [parser.feed(b"data: 1234567890\n") for _ in range(6)] == [[]] * 6
    with pytest.raises(RemoteProtocolError):
        parser.feed(b"data: 1234567890\n")
