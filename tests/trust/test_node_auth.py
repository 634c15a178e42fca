"""Fresh, and once: decided by the tracker's clock alone."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.ids import Incarnation, WalletId
from meshnet_protocol.proofs import (
    BOOT_HEADER,
    SEQUENCE_HEADER,
    SIGNATURE_HEADER,
    Proof,
    prove,
    public_key_of,
    public_key_text,
)
from meshnet_tracker.errors import BadSignatureError, StaleProofError
from meshnet_tracker.node_auth import FRESH_S_MAX, JoinRule, NodeAuth

KEY = Ed25519PrivateKey.generate()
WALLET = WalletId(public_key_text(KEY))
NOW = 1_800_000_000.0


def auth() -> NodeAuth:
    return NodeAuth(boot="boot", join=JoinRule())


def proof_at(time_s: float, *, boot: str = "boot") -> Proof:
    return prove(KEY, path="/p", boot=boot, sequence=int(time_s * 1e6), body=b"body")


def check(at: NodeAuth, proof: Proof, *, now: float = NOW, incarnation: str = "one") -> None:
    at.check(proof, wallet=WALLET, incarnation=Incarnation(incarnation), path="/p", body=b"body", now=now)


@pytest.mark.parametrize("age_s", [-FRESH_S_MAX + 0.1, 0.0, FRESH_S_MAX - 0.1])
def test_a_proof_is_fresh_within_half_a_minute(age_s: float) -> None:
    check(auth(), proof_at(NOW - age_s))


@pytest.mark.parametrize("age_s", [-FRESH_S_MAX - 0.1, FRESH_S_MAX + 0.1, 1e9])
def test_a_proof_from_another_time_is_stale(age_s: float) -> None:
    with pytest.raises(StaleProofError, match="s ago"):
        check(auth(), proof_at(NOW - age_s))


def test_an_earlier_proof_of_the_same_process_is_stale_and_of_another_process_is_not() -> None:
    at = auth()
    check(at, proof_at(NOW))
    with pytest.raises(StaleProofError, match="once"):
        check(at, proof_at(NOW - 0.001))
    check(at, proof_at(NOW - 0.001), incarnation="two")
    check(at, proof_at(NOW + 0.001))


def test_a_proof_stays_used_for_as_long_as_it_is_fresh_and_memory_ends_with_it() -> None:
    at = auth()
    early = proof_at(NOW)
    check(at, early)
    for number in range(100):
        check(at, proof_at(NOW + number * 0.3), now=NOW + number * 0.3, incarnation=f"other {number}")
    with pytest.raises(StaleProofError, match="once"):
        check(at, early, now=NOW + 29.7)

    check(at, proof_at(NOW + 100), now=NOW + 100, incarnation="last")
    assert len(at._latest) == 1
    with pytest.raises(StaleProofError, match="ago"):
        check(at, early, now=NOW + 100)


def test_a_refused_proof_leaves_no_trace() -> None:
    at = auth()
    forged = Proof("boot", proof_at(NOW + 5).sequence, bytes(64))
    with pytest.raises(BadSignatureError):
        check(at, forged)
    check(at, proof_at(NOW))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {BOOT_HEADER: "b", SEQUENCE_HEADER: "x", SIGNATURE_HEADER: "00"},
        {BOOT_HEADER: "b", SEQUENCE_HEADER: "-1", SIGNATURE_HEADER: "00"},
        {BOOT_HEADER: "b", SEQUENCE_HEADER: "²", SIGNATURE_HEADER: "00"},
        {BOOT_HEADER: "b", SEQUENCE_HEADER: "9" * 5000, SIGNATURE_HEADER: "00"},
        {BOOT_HEADER: "b" * 65, SEQUENCE_HEADER: "1", SIGNATURE_HEADER: "00"},
        {BOOT_HEADER: "b", SEQUENCE_HEADER: "1", SIGNATURE_HEADER: "no hex"},
    ],
)
def test_headers_without_a_proof_are_refused_by_name(headers: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError, match="x-meshnet-"):
        Proof.from_headers(headers)


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "wallet0000000000", "0" * 65])
def test_what_is_no_key_is_refused_as_one(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not a public key"):
        public_key_of(text)
