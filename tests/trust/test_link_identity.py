"""Both ends of a link prove their wallets; a proof is good for one link, in one direction."""

from pathlib import Path

import msgspec
import pytest

from meshnet_node.link_identity import LinkIdentity, check_answer, proven_wallet
from meshnet_node.wallet import Wallet
from meshnet_protocol.errors import RemoteProtocolError
from meshnet_protocol.frames import Greeting, LinkProof
from meshnet_protocol.ids import NodeId, WalletId


@pytest.fixture
def ends(tmp_path: Path) -> tuple[LinkIdentity, LinkIdentity]:
    return identity(tmp_path, "a"), identity(tmp_path, "b")


def identity(folder: Path, name: str) -> LinkIdentity:
    greeting = Greeting(node_id=NodeId(name), fingerprint="f", hidden_size=8)
    return LinkIdentity(greeting, Wallet.load_or_create(folder / f"{name}.pem"))


def wallet_of(end: LinkIdentity) -> WalletId:
    assert end.wallet is not None
    return end.wallet.wallet_id


def test_two_honest_ends_know_each_other(ends: tuple[LinkIdentity, LinkIdentity]) -> None:
    connecting, accepting = ends
    mine = connecting.greet()
    theirs = accepting.answer(mine)
    check_answer(mine, theirs, wanted=wallet_of(accepting))
    assert proven_wallet(mine, theirs, connecting.prove(mine, theirs)) == wallet_of(connecting)


def test_who_names_a_wallet_without_owning_it_is_found_out(ends: tuple[LinkIdentity, LinkIdentity]) -> None:
    connecting, accepting = ends
    mine = connecting.greet()
    theirs = accepting.answer(mine)
    claimed = msgspec.structs.replace(theirs, wallet=wallet_of(connecting))
    with pytest.raises(RemoteProtocolError, match="does not prove"):
        check_answer(mine, claimed, wanted=wallet_of(connecting))
    with pytest.raises(RemoteProtocolError, match="not"):
        check_answer(mine, theirs, wanted=wallet_of(connecting))
    thief = msgspec.structs.replace(mine, wallet=wallet_of(accepting))
    with pytest.raises(RemoteProtocolError, match="does not prove"):
        proven_wallet(thief, theirs, connecting.prove(thief, theirs))


def test_a_proof_of_one_link_is_worth_nothing_on_another_or_the_other_way_round(
    ends: tuple[LinkIdentity, LinkIdentity],
) -> None:
    connecting, accepting = ends
    mine = connecting.greet()
    theirs = accepting.answer(mine)
    overheard = connecting.prove(mine, theirs)
    again = connecting.greet()
    with pytest.raises(RemoteProtocolError):
        proven_wallet(again, accepting.answer(again), overheard)
    with pytest.raises(RemoteProtocolError):
        check_answer(again, theirs, wanted=wallet_of(accepting))
    with pytest.raises(RemoteProtocolError):
        proven_wallet(theirs, mine, LinkProof(proof=theirs.proof))


@pytest.mark.parametrize("wallet", ["", "no key", "g" * 64, "0" * 64])
def test_what_is_no_wallet_proves_nothing(ends: tuple[LinkIdentity, LinkIdentity], wallet: str) -> None:
    connecting, accepting = ends
    mine = msgspec.structs.replace(connecting.greet(), wallet=WalletId(wallet))
    theirs = accepting.answer(mine)
    with pytest.raises(RemoteProtocolError):
        proven_wallet(mine, theirs, connecting.prove(mine, theirs))
    with pytest.raises(RemoteProtocolError):
        check_answer(mine, msgspec.structs.replace(theirs, wallet=WalletId(wallet)), wanted=wallet_of(accepting))
