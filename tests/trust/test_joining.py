"""Who can register, beat and leave, and for which nodes: over real HTTP, signed as a node signs."""

from typing import Any

import msgspec
import pytest

from meshnet_protocol.ids import Incarnation, WalletId
from meshnet_protocol.messages import Heartbeat, Leave, Registration
from meshnet_protocol.proofs import Proof
from meshnet_tracker.testing import NodeVoice, RunningTracker, make_registration, running_head, running_tracker

TOKEN = "only-friends-know-this"


def registration_of(owner: NodeVoice, instance: str = "box", layers: str = "0-39", **fields: Any) -> Registration:
    return make_registration(instance, layers, wallet=owner.wallet, **fields)


def beat_of(node: Registration, *, is_draining: bool = False) -> Heartbeat:
    return Heartbeat(
        node_id=node.node_id,
        incarnation=node.incarnation,
        queue_depth=0,
        entry_layers=node.entry_layers,
        is_draining=is_draining,
    )


def leave_of(node: Registration) -> Leave:
    return Leave(node_id=node.node_id, incarnation=node.incarnation)


def is_ready(tracker: RunningTracker, node: Registration) -> bool:
    known = tracker.server.fleet.node(node.node_id)
    return known is not None and known.is_ready


async def test_what_is_not_signed_changes_nothing() -> None:
    async with running_tracker() as tracker:
        owner = NodeVoice(tracker.url)
        node = registration_of(owner)
        status, answer = await owner.send("register", msgspec.json.encode(node), None)
        assert (status, answer["error"]["code"]) == (401, "bad_signature")
        assert tracker.server.fleet.node(node.node_id) is None

        await owner.say("register", node)
        for verb, message in (("heartbeat", beat_of(node, is_draining=True)), ("leave", leave_of(node))):
            status, answer = await owner.send(verb, msgspec.json.encode(message), None)
            assert (status, answer["error"]["code"]) == (401, "bad_signature")
        assert is_ready(tracker, node)


async def test_nobody_can_register_move_or_remove_another_wallets_node() -> None:
    async with running_tracker() as tracker:
        owner, thief = NodeVoice(tracker.url), NodeVoice(tracker.url)
        node = registration_of(owner)
        await owner.say("register", node)

        moved = msgspec.structs.replace(node, url="http://192.0.2.66:1", incarnation=Incarnation("the thief's"))
        attempts = [
            await thief.say("register", moved),
            await thief.say("heartbeat", beat_of(node, is_draining=True)),
            await thief.say("leave", leave_of(node)),
        ]

        assert [(status, answer["error"]["code"]) for status, answer in attempts] == [(401, "bad_signature")] * 3
        assert is_ready(tracker, node)
        known = tracker.server.fleet.node(node.node_id)
        assert known is not None
        assert known.registration == node


async def test_a_node_id_stays_its_owners_even_for_a_wallet_whose_name_begins_alike() -> None:
    """A node id has twelve characters of the wallet: enough to tell apart, too few to prove anything."""
    async with running_tracker() as tracker:
        thief = NodeVoice(tracker.url)
        alike = WalletId(thief.wallet[:12] + "0" * 52)
        node_id = tracker.register("box", "0-39", wallet=alike)

        status, answer = await thief.say("register", registration_of(thief))

        assert (status, answer["error"]["code"]) == (409, "registration_conflict")
        known = tracker.server.fleet.node(node_id)
        assert known is not None
        assert known.registration.wallet == alike


async def test_a_signed_request_is_good_once() -> None:
    async with running_tracker() as tracker:
        owner = NodeVoice(tracker.url)
        node = registration_of(owner)
        await owner.greet()
        body = msgspec.json.encode(node)
        proof = owner.prove("/v1/nodes/register", body)
        first, _ = await owner.send("register", body, proof)
        second, answer = await owner.send("register", body, proof)
        assert (first, second, answer["error"]["code"]) == (200, 401, "stale_proof")

        await owner.greet()
        leave = msgspec.json.encode(leave_of(node))
        farewell = owner.prove("/v1/nodes/leave", leave)
        assert (await owner.send("leave", leave, farewell))[0] == 200
        await owner.say("register", node)
        status, answer = await owner.send("leave", leave, farewell)
        assert (status, answer["error"]["code"]) == (401, "stale_proof")
        assert is_ready(tracker, node)


async def test_a_proof_for_one_run_of_the_tracker_is_worth_nothing_to_the_next() -> None:
    async with running_tracker() as first, running_tracker() as second:
        owner = NodeVoice(first.url)
        node = registration_of(owner)
        await owner.greet()
        body = msgspec.json.encode(node)
        elsewhere = NodeVoice(second.url, owner.key)
        status, answer = await elsewhere.send("register", body, owner.prove("/v1/nodes/register", body))

    assert (status, answer["error"]["code"]) == (401, "stale_proof")


async def test_a_heartbeat_signed_for_an_earlier_run_makes_the_node_register_again() -> None:
    async with running_tracker() as tracker:
        owner = NodeVoice(tracker.url)
        node = registration_of(owner)
        await owner.say("register", node)
        owner.boot = "an earlier run"
        body = msgspec.json.encode(beat_of(node, is_draining=True))
        status, answer = await owner.send("heartbeat", body, owner.prove("/v1/nodes/heartbeat", body))

        assert (status, answer["is_known"]) == (200, False)
        assert is_ready(tracker, node)


@pytest.mark.parametrize("part", ["body", "path", "sequence", "signature"])
async def test_a_request_that_was_changed_on_its_way_is_refused(part: str) -> None:
    async with running_tracker() as tracker:
        owner = NodeVoice(tracker.url)
        await owner.greet()
        body = msgspec.json.encode(registration_of(owner))
        proof = owner.prove("/v1/nodes/leave" if part == "path" else "/v1/nodes/register", body)
        if part == "body":
            body = msgspec.json.encode(registration_of(owner, url="http://192.0.2.66:1"))
        if part == "sequence":
            proof = Proof(proof.boot, proof.sequence + 1, proof.signature)
        if part == "signature":
            proof = Proof(proof.boot, proof.sequence, bytes(64))
        status, answer = await owner.send("register", body, proof)

    assert (status, answer["error"]["code"]) == (401, "bad_signature")


async def test_with_a_join_token_only_those_who_know_it_join_and_it_is_never_sent() -> None:
    async with running_tracker(join_tokens=(TOKEN,)) as tracker:
        stranger, guesser = NodeVoice(tracker.url), NodeVoice(tracker.url, join_token="another one entirely")
        friend = NodeVoice(tracker.url, join_token=TOKEN)
        refused = [await voice.say("register", registration_of(voice)) for voice in (stranger, guesser)]
        joined, _ = await friend.say("register", registration_of(friend))
        sent = friend.prove("/v1/nodes/register", b"{}").to_headers()

    assert [(status, answer["error"]["code"]) for status, answer in refused] == [(403, "not_admitted")] * 2
    assert all("--join-token" in answer["error"]["message"] for _, answer in refused)
    assert joined == 200
    assert TOKEN not in str(sent)


async def test_a_join_proof_that_was_overheard_does_not_let_another_wallet_in() -> None:
    async with running_tracker(join_tokens=(TOKEN,)) as tracker:
        friend, listener = NodeVoice(tracker.url, join_token=TOKEN), NodeVoice(tracker.url)
        await friend.greet()
        overheard = friend.prove("/v1/nodes/register", msgspec.json.encode(registration_of(friend)))
        await listener.greet()
        body = msgspec.json.encode(registration_of(listener))
        own = listener.prove("/v1/nodes/register", body)
        mixed = Proof(own.boot, own.sequence, own.signature, overheard.join)
        status, answer = await listener.send("register", body, mixed)

    assert (status, answer["error"]["code"]) == (403, "not_admitted")


async def test_with_a_list_of_wallets_only_those_join_and_others_learn_what_to_ask_for() -> None:
    friend_key = NodeVoice("").key
    friend_wallet = NodeVoice("", friend_key).wallet
    async with running_tracker(allowed_wallets=frozenset({WalletId(friend_wallet)})) as tracker:
        friend, stranger = NodeVoice(tracker.url, friend_key), NodeVoice(tracker.url)
        joined, _ = await friend.say("register", registration_of(friend))
        status, answer = await stranger.say("register", registration_of(stranger))

    assert (joined, status) == (200, 403)
    assert f"--allow-wallet {stranger.wallet}" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("http://127.0.0.1:9", "--host 0.0.0.0"),
        ("http://127.1.2.3:9", "--advertise http://ADDRESS:9"),
        ("http://no-such-host.invalid:8091", "sudo ufw allow 8091/tcp"),
    ],
)
async def test_a_node_the_tracker_cannot_reach_is_told_what_to_open(url: str, remedy: str) -> None:
    async with running_tracker(checks_reachability=True) as tracker:
        owner = NodeVoice(tracker.url)
        status, answer = await owner.say("register", registration_of(owner, url=url))

        assert (status, answer["error"]["code"]) == (400, "node_unreachable")
        assert url in answer["error"]["message"]
        assert remedy in answer["error"]["message"]
        assert list(tracker.server.fleet.nodes()) == []


async def test_a_node_that_gives_another_ones_address_is_found_out() -> None:
    async with running_tracker(checks_reachability=True) as tracker, running_head() as other:
        owner = NodeVoice(tracker.url)
        other.node_id = "other.wallet@0-39"
        node = registration_of(owner, url=other.url)
        status, answer = await owner.say("register", node)
        assert (status, answer["error"]["code"]) == (400, "node_unreachable")
        assert "node other.wallet@0-39 answers there" in answer["error"]["message"]

        other.node_id = node.node_id
        assert (await owner.say("register", node))[0] == 200


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/nodes/pass", "/v1/nodes/suggest?model=tiny&layers=3"])
async def test_on_a_tracker_with_keys_those_who_may_join_can_ask_who_is_there_and_others_cannot(path: str) -> None:
    keys: dict[str, Any] = {"admin_keys": ("the-owners-own-key",), "join_tokens": (TOKEN,)}
    async with running_tracker(**keys) as tracker:
        tracker.register("whole", "0-39")
        friend, stranger = NodeVoice(tracker.url, join_token=TOKEN), NodeVoice(tracker.url)
        assert (await friend.ask(path))[0] == 200
        status, answer = await stranger.ask(path)
        assert (status, answer["error"]["code"]) == (403, "not_admitted")
        status, answer = await friend.ask(path, signs=path + "&more")
        assert (status, answer["error"]["code"]) == (401, "bad_signature")
        status, answer = await friend.ask("/v1/events")
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
