"""Wrong keys: counted per address, answered cheaply once there are too many; a right one always works."""

from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from meshnet_protocol.messages import Leave
from meshnet_tracker import guesses
from meshnet_tracker.guesses import GUESSES_MAX, WINDOW_S, Guesses
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.testing import NodeVoice, make_registration, running_head, running_tracker

from .test_access import ADMIN_KEY, CLIENT_KEY, GUARDED, ask


def guess(at: Guesses, count: int, *, address: str = "192.0.2.7", now: float = 0.0) -> list[int | None]:
    return [at.note(address, now) for _ in range(count)]


def test_too_many_wrong_keys_within_a_minute_make_an_address_wait_and_are_told_once() -> None:
    told: list[str] = []
    at = Guesses(told.append)
    assert guess(at, GUESSES_MAX) == [None] * GUESSES_MAX
    assert guess(at, 3, now=WINDOW_S / 2) == [WINDOW_S / 2] * 3
    assert guess(at, 1, address="192.0.2.8", now=WINDOW_S / 2) == [None]
    assert guess(at, 1, now=WINDOW_S) == [None], "the wait ends, however many came meanwhile"
    assert told == ["192.0.2.7"]


def test_addresses_of_one_ipv6_network_are_one() -> None:
    at = Guesses(lambda _: None)
    waits = [at.note(f"2001:db8::{number:x}", 0.0) for number in range(1, GUESSES_MAX + 2)]
    assert waits[-1] is not None
    assert guess(at, 1, address="2001:db8:0:1::1") == [None]
    assert guess(at, 1, address="no address at all") == [None]


def test_addresses_are_forgotten_when_their_time_is_over_or_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "ADDRESSES_MAX", 3)
    at = Guesses(lambda _: None)
    for number in range(10):
        at.note(f"192.0.2.{number}", float(number))
        assert len(at._windows) <= 3
    at.note("192.0.2.99", 10 * WINDOW_S)
    assert list(at._windows) == ["192.0.2.99"]


async def test_guesses_at_api_keys_end_in_a_429_and_a_right_key_from_there_still_works() -> None:
    async with running_tracker(**GUARDED) as tracker, running_head() as head:
        tracker.register("whole", "0-39", url=head.url)
        answers = [await ask(tracker, "/v1/models", f"sk-guess-{number:04}") for number in range(GUESSES_MAX + 2)]
        _, body, headers = answers[-1]
        other, _, _ = await ask(tracker, "/v1/overview", "sk-guess-again")
        right = [(await ask(tracker, "/v1/models", key))[0] for key in (CLIENT_KEY, ADMIN_KEY)]
        chat, _, _ = await ask(tracker, "/v1/chat/completions", CLIENT_KEY, method="POST")
        none, _, _ = await ask(tracker, "/v1/models")
        health, _, _ = await ask(tracker, "/health", "sk-guess-again")

    assert [status for status, _, _ in answers] == [401] * GUESSES_MAX + [429] * 2
    assert "too_many_wrong_keys" in body
    assert 0 < int(headers["retry-after"]) <= WINDOW_S
    assert (other, right, chat) == (429, [200, 200], 200)
    assert (none, health) == (401, 200), "who shows no key does not guess, and health is for everybody"


async def test_guesses_at_the_join_token_end_in_a_429_and_the_right_one_from_there_still_works() -> None:
    async with running_tracker(join_tokens=("only-friends-know-this",)) as tracker, running_head() as head:
        stranger = NodeVoice(tracker.url, join_token="a wrong one")
        node = make_registration("box", "0-39", wallet=stranger.wallet, url=head.url)
        answers = [await stranger.say("register", node) for _ in range(GUESSES_MAX + 1)]
        friend = NodeVoice(tracker.url, join_token="only-friends-know-this")
        right, _ = await friend.say("register", make_registration("good", "0-39", wallet=friend.wallet, url=head.url))
        shy = NodeVoice(tracker.url)
        none, _ = await shy.say("register", make_registration("shy", "0-39", wallet=shy.wallet, url=head.url))

    assert [status for status, _ in answers] == [403] * GUESSES_MAX + [429]
    assert answers[-1][1]["error"]["code"] == "too_many_wrong_proofs"
    assert (right, none) == (200, 403), "who shows no token does not guess"


async def test_forged_signatures_of_nodes_are_counted_too() -> None:
    async with running_tracker() as tracker, running_head() as head:
        owner, thief = NodeVoice(tracker.url), NodeVoice(tracker.url)
        node = make_registration("box", "0-39", wallet=owner.wallet, url=head.url)
        await owner.say("register", node)
        leave = Leave(node_id=node.node_id, incarnation=node.incarnation)
        answers = [await thief.say("leave", leave) for _ in range(GUESSES_MAX + 1)]
        mine, _ = await owner.say("leave", leave)

    assert [status for status, _ in answers] == [401] * GUESSES_MAX + [429]
    assert mine == 200


async def test_a_members_question_with_a_wrong_token_is_a_guess() -> None:
    async with running_tracker(**{**GUARDED, "join_tokens": ("only-friends-know-this",)}) as tracker:
        stranger = NodeVoice(tracker.url, join_token="a wrong one")
        answers = [await stranger.ask("/v1/nodes/pass") for _ in range(GUESSES_MAX + 1)]

    assert [status for status, _ in answers] == [403] * GUESSES_MAX + [429]


async def test_guesses_at_the_login_are_told_to_wait_and_the_owner_gets_in() -> None:
    async def log_in(http: aiohttp.ClientSession, key: str) -> tuple[int, Mapping[str, str], str]:
        async with http.post("/login", data={"key": key}, allow_redirects=False) as response:
            return response.status, response.headers, await response.text()

    settings: dict[str, Any] = dict(GUARDED)
    async with running_tracker(**settings) as tracker, aiohttp.ClientSession(tracker.url) as http:
        guessed = [await log_in(http, f"guess-{number:06}") for number in range(GUESSES_MAX + 1)]
        right = await log_in(http, ADMIN_KEY)

    assert [status for status, _, _ in guessed] == [303] * GUESSES_MAX + [429]
    assert int(guessed[-1][1]["retry-after"]) > 0
    assert "<form" in guessed[-1][2]
    assert (right[0], right[1]["location"]) == (303, "/")


def test_short_keys_are_noticed() -> None:
    assert TrackerSettings(api_keys=("0123456789",)).has_short_keys
    assert TrackerSettings(join_tokens=("0123456789",)).has_short_keys
    assert not TrackerSettings(api_keys=("0123456789abcdef",)).has_short_keys
    assert not TrackerSettings().has_short_keys
