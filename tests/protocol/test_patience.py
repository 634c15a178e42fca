"""Silence is measured by who was awake to hear it, whatever the clocks say on waking."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_protocol.awake_timeout import AwakeTimeout
from meshnet_protocol.patience import LATE_S_MAX, LOOK_S_MAX, Patience

SLEEP_S = 3600.0


class SleepyLoop(asyncio.SelectorEventLoop):
    """Its clock jumps as the real one does for a process that was stopped."""

    slept_s = 0.0

    def time(self) -> float:
        return super().time() + self.slept_s

    def sleep(self) -> None:
        self.slept_s += SLEEP_S


def run(story: Callable[[SleepyLoop], Awaitable[None]]) -> None:
    async def told() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SleepyLoop)
        async with asyncio.timeout(2 * SLEEP_S):
            await story(loop)

    with asyncio.Runner(loop_factory=SleepyLoop) as runner:
        runner.run(told())


def wait_out(patience: Patience, now: float) -> float:
    """Looks as often as is wanted until it is over; when that is."""
    while not patience.is_over:
        now += patience.next_look_s
        patience.look(now)
    return now


def test_silence_ends_a_patience_and_a_sign_of_life_renews_it() -> None:
    patience = Patience(2.5, 10.0)
    assert wait_out(patience, 10.0) == pytest.approx(12.5)
    patience.renew(12.6)
    assert wait_out(patience, 12.6) == pytest.approx(15.1)
    assert not patience.has_slept


@given(st.floats(0.1, 30.0), st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 1e6)), max_size=5))
def test_whatever_was_slept_through_nobody_waited_longer_or_shorter_than_awake(
    seconds: float, sleeps: list[tuple[float, float]]
) -> None:
    patience, now, awake_s, slept_s = Patience(seconds, 0.0), 0.0, 0.0, 0.0
    for at_s, for_s in sorted(sleeps):
        while awake_s < at_s and not patience.is_over:
            step_s = patience.next_look_s
            now, awake_s = now + step_s, awake_s + step_s
            patience.look(now)
        if patience.is_over:
            break
        asleep_s = for_s + LOOK_S_MAX + LATE_S_MAX
        now, slept_s = now + asleep_s, slept_s + asleep_s
        patience.look(now)
    end = wait_out(patience, now)
    assert end - slept_s == pytest.approx(seconds, abs=0.01)


def test_what_comes_in_time_earns_more_time_and_never_more_than_at_first() -> None:
    patience = Patience(30.0, 0.0)
    for second in range(1, 101):
        patience.look(float(second))
        patience.earn(0.5)
    assert patience.is_over, "half as fast as it should be"

    patience = Patience(30.0, 0.0)
    patience.earn(1e6)
    assert wait_out(patience, 0.0) == pytest.approx(30.0)


def test_a_timeout_ends_what_does_not_come() -> None:
    async def story(_: SleepyLoop) -> None:
        with pytest.raises(TimeoutError):
            async with AwakeTimeout(0.05):
                await asyncio.Event().wait()

    run(story)


def test_a_process_that_slept_hears_what_came_meanwhile() -> None:
    async def story(loop: SleepyLoop) -> None:
        heard = loop.create_future()
        loop.call_later(0.01, loop.sleep)
        loop.call_later(SLEEP_S + 0.02, heard.set_result, "a word")
        async with AwakeTimeout(0.5) as patience:
            assert await heard == "a word"
        assert patience.has_slept

    run(story)


def test_who_is_still_silent_after_the_sleep_is_not_borne_for_ever() -> None:
    async def story(loop: SleepyLoop) -> None:
        loop.call_later(0.01, loop.sleep)
        with pytest.raises(TimeoutError):
            async with AwakeTimeout(0.1):
                await asyncio.Event().wait()

    run(story)


def test_a_patience_lasts_over_several_waits_and_the_time_between_them_is_nobodys() -> None:
    async def story(loop: SleepyLoop) -> None:
        patience = Patience(0.2, loop.time())
        async with AwakeTimeout(patience):
            await asyncio.sleep(0.05)
        loop.slept_s += 0.5  # less than a sleep, and nobody waits
        async with AwakeTimeout(patience):
            await asyncio.sleep(0)
        assert 0.04 < patience.passed_s < 0.2
        with pytest.raises(TimeoutError):
            async with AwakeTimeout(patience):
                await asyncio.Event().wait()

    run(story)


def test_a_deadline_holds_whoever_sleeps() -> None:
    async def story(loop: SleepyLoop) -> None:
        loop.call_later(0.01, loop.sleep)
        with pytest.raises(TimeoutError):
            async with AwakeTimeout(10.0, until=loop.time() + 60.0):
                await asyncio.Event().wait()

    run(story)


def test_to_be_cancelled_is_no_timeout() -> None:
    async def story(loop: SleepyLoop) -> None:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_wait_long())
            await asyncio.sleep(0.01)
            waiting.cancel()
        assert waiting.cancelled()

    run(story)


async def _wait_long() -> None:
    async with AwakeTimeout(10.0):
        await asyncio.Event().wait()
