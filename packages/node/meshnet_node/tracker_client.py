"""The node's side of membership: greet, register, beat, re-cut where the tracker asks, leave.

All that it says of itself is signed by its wallet. Everything heals by itself: a tracker that is down is tried
again, slower and slower up to a limit; a tracker that has forgotten the node (restart) answers a heartbeat with
``is_known: false`` and the node greets it and registers again at once.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
import msgspec
import structlog

from meshnet_node.errors import NodeError, RegistrationRefusedError
from meshnet_node.settings import NodeSettings
from meshnet_node.tracker_trust import TrackerTrust
from meshnet_node.wallet import Wallet
from meshnet_protocol.ids import NodeId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import (
    Heartbeat,
    HeartbeatReply,
    Leave,
    Message,
    Registration,
    RegistrationReply,
    TrackerGreeting,
)
from meshnet_protocol.proofs import prove

REQUEST_TIMEOUT_S = 5.0
RETRY_PERIOD_S_MIN = 0.5
RETRY_PERIOD_S_MAX = 10.0
RECUT_RETRY_S = 30.0

REFUSALS = (400, 401, 403, 409, 413)
UNREACHABLE_TRIES_MAX = 3
"""How often a new node is told that it cannot be reached before it gives up. One that was a member never does."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Membership:
    """By what a node proves to its tracker who it is."""

    wallet: Wallet
    trust: TrackerTrust
    join_token: str = field(default="", repr=False)

    @classmethod
    def of(cls, settings: NodeSettings, wallet: Wallet) -> "Membership":
        return cls(wallet, TrackerTrust(pinned_key=settings.tracker_key), join_token=settings.join_token)

    def headers(self, path: str, body: bytes) -> dict[str, str]:
        proof = prove(
            self.wallet.private_key,
            path=path,
            boot=self.trust.boot,
            sequence=self.trust.next_sequence(),
            body=body,
            join_token=self.join_token,
        )
        return proof.to_headers()


class Member(Protocol):
    """What is kept known: an engine, or something that stands for one."""

    @property
    def shard(self) -> LayerRange: ...
    @property
    def entry_layers(self) -> tuple[int, ...]: ...
    @property
    def queue_depth(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def kv_tokens_max(self) -> int: ...
    async def recut(self, entry_layers: frozenset[int], /) -> None: ...


class Queue(Protocol):
    """Counts the chats under way, those that wait for a slot included."""

    @property
    def queue_depth(self) -> int: ...


class TrackerClient:
    """Keeps one node known to one tracker."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        engine: Member,
        admission: Queue,
        registration: Callable[[], Registration],
        membership: Membership,
    ) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._engine = engine
        self._admission = admission
        self._registration = registration
        self._membership = membership
        self._was_member = False
        self._is_draining = False
        self._changed = asyncio.Event()
        self._wanted_entry_layers = frozenset(engine.entry_layers)
        self._wanted_changed = asyncio.Event()

    async def run(self) -> None:
        """Register and beat until cancelled.

        Raises RegistrationRefusedError if the tracker refuses the node, TrackerKeyError the other way round.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_cut(), name="re-cut the shard")
            while True:
                reply = await self._register()
                self._was_member = True
                log.info("registered", node_id=reply.node_id, tracker=self._url)
                self._want_entry_layers(reply.wanted_entry_layers)
                await self._beat(reply.node_id, reply.heartbeat_period_s)

    def start_draining(self) -> None:
        """Tell the tracker, with the next heartbeat and at once, to send nothing new."""
        self._is_draining = True
        self._changed.set()

    async def leave(self) -> None:
        """Say good-bye; a tracker that cannot be reached will notice by itself."""
        registration = self._registration()
        farewell = Leave(node_id=registration.node_id, incarnation=registration.incarnation)
        try:
            await self._post("leave", farewell)
        except (aiohttp.ClientError, OSError, TimeoutError, RegistrationRefusedError) as error:
            log.warning("could not say good-bye to the tracker", error=str(error) or type(error).__name__)

    async def _register(self) -> RegistrationReply:
        period_s = RETRY_PERIOD_S_MIN
        refusals = 0
        while True:
            try:
                await self._greet()
                return msgspec.json.decode(await self._post("register", self._registration()), type=RegistrationReply)
            except RegistrationRefusedError as error:
                refusals += 1
                if not self._may_pass(error.tracker_code, refusals):
                    raise
                log.warning("the tracker refuses this node for now, trying again", error=str(error))
            except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
                log.warning(
                    "tracker not reached, trying again", tracker=self._url, error=str(error) or type(error).__name__
                )
            # Jitter, so that all nodes of a mesh do not knock at a restarted tracker in the same instant.
            await asyncio.sleep(period_s * random.uniform(0.5, 1.0))
            period_s = min(2 * period_s, RETRY_PERIOD_S_MAX)

    def _may_pass(self, code: str | None, refusals: int) -> bool:
        """Whether a refusal may be over at the next try: a clock that was set, a network that was slow."""
        is_patient = self._was_member or refusals < UNREACHABLE_TRIES_MAX
        return code == "stale_proof" or (code == "node_unreachable" and is_patient)

    async def _greet(self) -> None:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with self._http.get(f"{self._url}/v1/nodes/greeting", timeout=timeout) as response:
            response.raise_for_status()
            self._membership.trust.greet(msgspec.json.decode(await response.read(), type=TrackerGreeting))

    async def _beat(self, node_id: NodeId, period_s: float) -> None:
        """Until the tracker no longer knows this node."""
        while True:
            reply = await self._heartbeat(node_id)
            if reply is not None and not reply.is_known:
                log.warning("the tracker does not know this node any more; registering again")
                return
            if reply is not None:
                self._want_entry_layers(reply.wanted_entry_layers)
                if reply.time_s is not None:
                    self._membership.trust.set_time(reply.time_s)
            try:
                async with asyncio.timeout(period_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()

    async def _heartbeat(self, node_id: NodeId) -> HeartbeatReply | None:
        beat = Heartbeat(
            node_id=node_id,
            incarnation=self._registration().incarnation,
            queue_depth=self._admission.queue_depth,
            active_slots=self._engine.queue_depth,
            kv_tokens=self._engine.kv_tokens,
            kv_tokens_max=self._engine.kv_tokens_max,
            entry_layers=self._engine.entry_layers,
            is_draining=self._is_draining,
        )
        try:
            return msgspec.json.decode(await self._post("heartbeat", beat), type=HeartbeatReply)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            log.warning("heartbeat not delivered", tracker=self._url, error=str(error) or type(error).__name__)
            return None

    def _want_entry_layers(self, wanted: tuple[int, ...]) -> None:
        entry_layers = frozenset(wanted) | {self._engine.shard.first}
        if entry_layers != self._wanted_entry_layers:
            self._wanted_entry_layers = entry_layers
            self._wanted_changed.set()

    async def _keep_cut(self) -> None:
        """Cut the shard where the tracker asks, beside the heartbeats: slicing and loading may take minutes."""
        while True:
            await self._wanted_changed.wait()
            self._wanted_changed.clear()
            await self._cut(self._wanted_entry_layers)

    async def _cut(self, wanted: frozenset[int]) -> None:
        log.info("re-cutting the shard", entry_layers=sorted(wanted))
        try:
            await self._engine.recut(wanted)
        except NodeError as error:
            log.error("the shard stays cut as it was; trying again", error=str(error), again_in_s=RECUT_RETRY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(RECUT_RETRY_S):
                    await self._wanted_changed.wait()
            self._wanted_changed.set()
        self._changed.set()

    async def _post(self, verb: str, message: Message) -> bytes:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        body = msgspec.json.encode(message)
        path = f"/v1/nodes/{verb}"
        headers = {"Content-Type": "application/json", **self._membership.headers(path, body)}
        async with self._http.post(f"{self._url}{path}", data=body, headers=headers, timeout=timeout) as response:
            answer = await response.read()
            if response.status in REFUSALS:
                code, reason = _refusal_of(answer)
                raise RegistrationRefusedError(f"the tracker at {self._url} refuses: {reason}", code)
            response.raise_for_status()
            return answer


def _refusal_of(answer: bytes) -> tuple[str | None, str]:
    """The error's code, if it has one, and what it says."""
    try:
        error = msgspec.json.decode(answer)["error"]
        return error.get("code"), str(error["message"])
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return None, answer[:200].decode(errors="replace")
