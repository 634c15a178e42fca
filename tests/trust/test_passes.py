"""Who may read a node's model file: whoever shows a pass that its tracker signed, in time."""

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_node.errors import NoPassError, TicketError
from meshnet_node.reader_gate import ReaderGate
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_tracker.ticket_office import PASS_S, TicketOffice

from .test_tickets import NOW, STRANGER, TRACKER, Clock, gate, greeting_of, plan, ticketed

PASS = TicketOffice(TRACKER).issue_pass(now=NOW)


def reader_gate(clock: Clock | None = None, *, is_open: bool = False) -> ReaderGate:
    trust = TrackerTrust(clock=clock or Clock())
    trust.greet(greeting_of(TRACKER))
    return ReaderGate(trust, is_open=is_open)


def test_a_pass_opens_the_file_for_some_minutes_of_the_trackers_clock() -> None:
    clock = Clock()
    at = reader_gate(clock)
    at.check(PASS)
    clock.now += PASS_S
    at.check(PASS)
    clock.now += 1
    with pytest.raises(NoPassError, match="expired"):
        at.check(PASS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "\ud83d.b.c",
        "x" * 300_000,
        PASS[:-8] + "AAAAAAA=",
        TicketOffice(STRANGER).issue_pass(now=NOW),
        ticketed().ticket,
        jwt.encode({"reads": "model files"}, TRACKER, algorithm="EdDSA"),
        jwt.encode({"reads": "everything", "exp": int(NOW) + 9}, TRACKER, algorithm="EdDSA"),
    ],
)
def test_what_is_no_pass_of_the_tracker_opens_nothing(text: str) -> None:
    with pytest.raises(NoPassError):
        reader_gate().check(text)


def test_a_pass_is_no_ticket() -> None:
    with pytest.raises(TicketError), gate().claim(msgspec.structs.replace(plan(), ticket=PASS)):
        pass


def test_a_node_that_has_not_met_its_tracker_hands_out_nothing() -> None:
    with pytest.raises(NoPassError, match="not met"):
        ReaderGate(TrackerTrust(), is_open=False).check(PASS)


def test_an_open_node_asks_for_nothing() -> None:
    reader_gate(is_open=True).check("")


def test_another_runs_key_makes_old_passes_worthless() -> None:
    trust = TrackerTrust(clock=Clock())
    trust.greet(greeting_of(Ed25519PrivateKey.generate()))
    with pytest.raises(NoPassError):
        ReaderGate(trust, is_open=False).check(PASS)
