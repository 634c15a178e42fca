"""How long a head may be silent: by the time in which the tracker could have heard it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from meshnet_protocol.ids import NodeId
from meshnet_tracker.attempt_watch import AttemptWatch
from meshnet_tracker.errors import AttemptFailedError, NodeLostError, ShuttingDownError

HEAD = NodeId("head")


class SleepyLoop(asyncio.SelectorEventLoop):
    """Its clock jumps as the real one does for a process that was stopped."""

    slept_s = 0.0

    def time(self) -> float:
        return super().time() + self.slept_s

    def sleep(self) -> None:
        self.slept_s += 60.0


def run(story: Callable[[SleepyLoop, AttemptWatch], Awaitable[None]], *, chat_s: float = 600.0) -> None:
    async def told() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SleepyLoop)
        await story(loop, AttemptWatch(HEAD, silence_s_max=0.2, ends_at=loop.time() + chat_s))

    with asyncio.Runner(loop_factory=SleepyLoop) as runner:
        runner.run(told())


def test_a_silent_head_is_given_up_and_is_to_be_probed() -> None:
    async def story(_: SleepyLoop, watch: AttemptWatch) -> None:
        with pytest.raises(AttemptFailedError) as failed:
            await watch.wait(asyncio.Event().wait())
        assert (failed.value.culprit, failed.value.is_blameless, failed.value.wants_probe) == (HEAD, False, True)

    run(story)


def test_silence_adds_up_over_several_waits_until_there_is_a_sign_of_life() -> None:
    async def story(_: SleepyLoop, watch: AttemptWatch) -> None:
        for _number in range(4):
            await watch.wait(asyncio.sleep(0.1))
            watch.note_life()
        await watch.wait(asyncio.sleep(0.1))
        with pytest.raises(AttemptFailedError):
            await watch.wait(asyncio.sleep(0.15))

    run(story)


def test_a_tracker_that_slept_goes_on_to_listen() -> None:
    async def story(loop: SleepyLoop, watch: AttemptWatch) -> None:
        loop.call_later(0.05, loop.sleep)
        await watch.wait(asyncio.sleep(60.1))
        assert watch.has_slept

    run(story)


def test_what_breaks_behind_the_trackers_back_while_it_sleeps_is_nobodys_fault() -> None:
    async def story(loop: SleepyLoop, watch: AttemptWatch) -> None:
        async def break_off() -> None:
            await asyncio.sleep(60.1)
            raise AttemptFailedError("the head broke its connection off", culprit=HEAD, wants_probe=True)

        loop.call_later(0.05, loop.sleep)
        with pytest.raises(AttemptFailedError) as failed:
            await watch.wait(break_off())
        assert failed.value.is_blameless

    run(story)


def test_the_end_of_a_chat_and_of_the_tracker_come_whoever_sleeps() -> None:
    async def too_long(loop: SleepyLoop, watch: AttemptWatch) -> None:
        loop.call_later(0.05, loop.sleep)
        with pytest.raises(NodeLostError):
            await watch.wait(asyncio.Event().wait())

    async def stopping(loop: SleepyLoop, watch: AttemptWatch) -> None:
        loop.call_later(0.05, watch.cut_off, ShuttingDownError("bye"))
        with pytest.raises(ShuttingDownError):
            await watch.wait(asyncio.Event().wait())
        with pytest.raises(ShuttingDownError):
            await watch.wait(asyncio.Event().wait())

    run(too_long, chat_s=30.0)
    run(stopping)
