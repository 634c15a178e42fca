"""A node's membership against a real tracker: what it takes as final, and what it tries again."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from meshnet_node import tracker_client
from meshnet_node.errors import MemoryShortageError, RegistrationRefusedError, TrackerKeyError
from meshnet_node.tracker_client import Membership, TrackerClient
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_node.wallet import Wallet
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import Registration
from meshnet_tracker.testing import RunningTracker, make_registration, running_head, running_tracker


class Idle:
    """A member with nothing to compute."""

    shard = LayerRange(0, 39)
    entry_layers = (0,)
    queue_depth = kv_tokens = kv_tokens_max = 0

    async def recut(self, _entry_layers: frozenset[int], /) -> None: ...


@asynccontextmanager
async def client_of(
    tracker: RunningTracker, folder: Path, registration: Callable[[str], Registration], *, pinned_key: str | None = None
) -> AsyncIterator[TrackerClient]:
    """``registration`` is told the wallet."""
    wallet = Wallet.load_or_create(folder / "wallet.pem")
    membership = Membership(wallet, TrackerTrust(pinned_key=pinned_key))
    async with aiohttp.ClientSession() as http:
        idle = Idle()
        yield TrackerClient(http, tracker.url, idle, idle, lambda: registration(wallet.wallet_id), membership)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_client, "RETRY_PERIOD_S_MIN", 0.01)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - a look at the fleet
            await asyncio.sleep(0.01)


async def test_a_node_that_was_never_reached_gives_up_with_the_trackers_advice(tmp_path: Path) -> None:
    def unreachable(wallet: str) -> Registration:
        return make_registration("box", "0-39", wallet=wallet, url="http://127.0.0.1:9")

    async with (
        running_tracker(checks_reachability=True) as tracker,
        client_of(tracker, tmp_path, unreachable) as client,
    ):
        with pytest.raises(ExceptionGroup) as ended:
            await client.run()
    (error,) = ended.value.exceptions
    assert isinstance(error, RegistrationRefusedError)
    assert "--host 0.0.0.0" in str(error)


async def test_a_member_is_known_again_after_the_tracker_forgot_it_even_if_it_is_unreachable_for_a_while(
    tmp_path: Path,
) -> None:
    def reachable(wallet: str) -> Registration:
        return make_registration("box", "0-39", wallet=wallet, url=face.url)

    async with (
        running_head() as face,
        running_tracker(checks_reachability=True, heartbeat_period_s=0.05) as tracker,
        client_of(
            tracker, tmp_path, lambda wallet: make_registration("box", "0-39", wallet=wallet, url=face.url)
        ) as client,
        asyncio.TaskGroup() as tasks,
    ):
        node_id = make_registration(
            "box", "0-39", wallet=Wallet.load_or_create(tmp_path / "wallet.pem").wallet_id
        ).node_id
        face.node_id = node_id
        running = tasks.create_task(client.run())
        await until(lambda: tracker.server.fleet.node(node_id) is not None)

        face.node_id = "somebody else, for now"
        tracker.server.node_auth.boot = "another run"
        await until(lambda: tracker.server.fleet.node(node_id) is None)
        face.node_id = node_id
        await until(lambda: tracker.server.fleet.node(node_id) is not None)
        running.cancel()


async def test_a_node_does_not_join_a_tracker_with_another_key_than_its_owner_named(tmp_path: Path) -> None:
    async with (
        running_tracker() as tracker,
        client_of(
            tracker, tmp_path, lambda w: make_registration("box", "0-39", wallet=w), pinned_key="0" * 64
        ) as client,
    ):
        with pytest.raises(ExceptionGroup) as ended:
            await client.run()
        assert list(tracker.server.fleet.nodes()) == []
    (error,) = ended.value.exceptions
    assert isinstance(error, TrackerKeyError)


async def test_a_tracker_that_is_away_is_tried_more_and_more_seldom_and_never_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EnoughError(Exception):
        pass

    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 16:
            raise EnoughError

    monkeypatch.setattr(asyncio, "sleep", note)
    monkeypatch.setattr(random, "uniform", lambda _, high: high)
    async with aiohttp.ClientSession() as http:
        idle, membership = Idle(), Membership(Wallet.load_or_create(tmp_path / "wallet.pem"), TrackerTrust())
        node = make_registration("box", "0-39")
        client = TrackerClient(http, "http://127.0.0.1:9", idle, idle, lambda: node, membership)
        with pytest.raises(ExceptionGroup):
            await client.run()

    assert waits == sorted(waits)
    assert waits[0] == tracker_client.RETRY_PERIOD_S_MIN
    assert waits[-3:] == [tracker_client.RETRY_PERIOD_S_MAX] * 3


async def test_a_cut_that_failed_is_not_reported_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(Idle):
        tries = 0

        async def recut(self, _entry_layers: frozenset[int], /) -> None:
            self.tries += 1
            raise MemoryShortageError("no room for another cut")

    monkeypatch.setattr(tracker_client, "RECUT_RETRY_S", 0.01)
    stubborn = Stubborn()
    membership = Membership(Wallet.load_or_create(tmp_path / "wallet.pem"), TrackerTrust())
    node = make_registration("whole", "0-39", wallet=membership.wallet.wallet_id)
    async with (
        running_tracker(heartbeat_period_s=0.05) as tracker,
        aiohttp.ClientSession() as http,
        asyncio.TaskGroup() as tasks,
    ):
        client = TrackerClient(http, tracker.url, stubborn, stubborn, lambda: node, membership)
        running = tasks.create_task(client.run())
        await until(lambda: tracker.server.fleet.node(node.node_id) is not None)
        tracker.register("head", "0-21")
        await until(lambda: stubborn.tries >= 3)
        known = tracker.server.fleet.node(node.node_id)
        wanted = tracker.server.fleet.wanted_entry_layers(node.node_id)
        running.cancel()

    assert known is not None
    assert wanted == (22,)
    assert known.entry_layers == {0}
