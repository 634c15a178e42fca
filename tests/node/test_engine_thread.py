"""The engine as its callers know it: slots, entry layers, re-cuts, failures."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshnet_node.engine.cache_types import cache_types
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.segment import Segment, SegmentSettings, SegmentShape, SequenceRows
from meshnet_node.engine.thread import Engine, StepInput
from meshnet_node.errors import (
    ContextOverflowError,
    DecodeError,
    EngineClosedError,
    EntryLayerError,
    LayersError,
    NoFreeSlotError,
    StepError,
)
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from node.engine_helpers import GREEDY, Talk, generate_together, options

ALL = LayerRange(0, 29)
PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def engine(model_path: Path, cache_dir: Path) -> Iterator[Engine]:
    """The whole model, cut once; tests leave it without sessions."""
    built = Engine.load(model_path, ALL, options(cache_dir, context_tokens=256), entry_layers=frozenset({17}))
    yield built
    built.close()


@pytest.fixture
def small(model_path: Path, cache_dir: Path) -> Iterator[Engine]:
    """Few layers, few slots: for tests that close or re-cut."""
    built = Engine.load(model_path, LayerRange(20, 29), options(cache_dir, slots=2, context_tokens=256))
    yield built
    built.close()


def open_at(engine: Engine, first: int) -> Talk:
    return Talk.open([engine], starts=[first])


def hidden_rows(count: int, size: int = 576) -> memoryview:
    return np.random.default_rng(1).standard_normal((count, size)).astype(np.float32).data.cast("B")


def test_a_session_too_many_is_refused_until_another_closes(engine: Engine) -> None:
    talks = [open_at(engine, 0) for _ in range(4)]

    with pytest.raises(NoFreeSlotError, match="all 4 slots"):
        open_at(engine, 0)
    talks.pop().close()
    talks.append(open_at(engine, 0))

    assert engine.queue_depth == 4
    for talk in talks:
        talk.close()
        talk.close()
    assert engine.queue_depth == 0


@pytest.mark.parametrize("layers", [LayerRange(1, 29), LayerRange(18, 29), LayerRange(0, 28), LayerRange(17, 17)])
def test_a_shard_is_entered_where_it_is_cut_and_left_at_its_end(engine: Engine, layers: LayerRange) -> None:
    assert engine.entry_layers == (0, 17)

    with pytest.raises(EntryLayerError, match="0, 17"):
        engine.open_session(SessionId("s"), layers, GREEDY)

    assert engine.queue_depth == 0


def test_layers_the_model_lacks_are_refused_at_load(model_path: Path, cache_dir: Path) -> None:
    with pytest.raises(LayersError, match="0-29"):
        Engine.load(model_path, LayerRange(20, 30), options(cache_dir))


async def test_a_slot_given_away_again_remembers_nothing(engine: Engine) -> None:
    first = await open_at(engine, 0).generate(PROMPT, 6)
    await open_at(engine, 0).generate([9000, 12, 77], 6)

    assert await open_at(engine, 0).generate(PROMPT, 6) == first


async def test_steps_of_a_session_complete_in_order(engine: Engine) -> None:
    talk = open_at(engine, 0)
    session = talk.sessions[0]
    done: list[int] = []

    async def step(index: int) -> None:
        tokens = PROMPT * 20
        await engine.step(session, StepInput(index * len(tokens), tokens, None, wants_token=False))
        done.append(index)

    await asyncio.gather(*(step(index) for index in range(2)))
    talk.close()

    assert done == [0, 1]


async def test_a_step_reports_where_its_time_went(engine: Engine) -> None:
    talk = open_at(engine, 0)
    result = await engine.step(talk.sessions[0], StepInput(0, PROMPT, None, wants_token=True))
    talk.close()

    assert result.compute_s > 0
    assert result.queue_s >= 0
    assert result.hidden is None


async def test_hidden_states_leave_where_the_shard_ends(model_path: Path, cache_dir: Path) -> None:
    engine = Engine.load(model_path, LayerRange(5, 6), options(cache_dir))
    session = engine.open_session(SessionId("s"), LayerRange(5, 6), None)

    result = await engine.step(session, StepInput(0, None, hidden_rows(100), wants_token=True))
    engine.close()

    assert result.token_id is None
    assert result.hidden is not None
    assert result.hidden.nbytes == 100 * 576 * 4


async def test_hidden_states_may_lie_anywhere_in_a_frame(small: Engine) -> None:
    frame = memoryview(b"xyz" + bytes(hidden_rows(2)))
    tokens = []
    for rows in (hidden_rows(2), frame[3:]):
        talk = open_at(small, 20)
        result = await small.step(talk.sessions[0], StepInput(0, None, rows, wants_token=True))
        tokens.append(result.token_id)
        talk.close()

    assert tokens[0] is not None
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    "step",
    [
        StepInput(3, [1], None, wants_token=True),
        StepInput(0, [], None, wants_token=True),
        StepInput(0, [50_000], None, wants_token=True),
        StepInput(0, [-1], None, wants_token=True),
        StepInput(0, None, hidden_rows(1), wants_token=True),
        StepInput(0, [1], hidden_rows(1), wants_token=True),
        StepInput(0, None, None, wants_token=True),
    ],
    ids=["gap", "empty", "large-id", "negative-id", "hidden-at-head", "both", "neither"],
)
async def test_a_step_that_does_not_fit_is_refused_and_harms_nobody(engine: Engine, step: StepInput) -> None:
    talk = open_at(engine, 0)

    with pytest.raises(StepError):
        await engine.step(talk.sessions[0], step)

    assert len(await talk.generate(PROMPT, 2)) == 2


async def test_odd_sized_hidden_states_are_refused(small: Engine) -> None:
    talk = open_at(small, 20)

    with pytest.raises(StepError, match="2304 bytes each"):
        await small.step(talk.sessions[0], StepInput(0, None, hidden_rows(1)[:-4], wants_token=True))


async def test_more_than_the_context_holds_is_refused(engine: Engine) -> None:
    talk = open_at(engine, 0)
    await talk.push([1] * 256)

    with pytest.raises(ContextOverflowError, match="257"):
        await talk.push([1])
    talk.close()


async def test_closing_a_session_ends_its_steps(engine: Engine) -> None:
    talk = open_at(engine, 0)
    step = asyncio.ensure_future(engine.step(talk.sessions[0], StepInput(0, [5] * 250, None, wants_token=True)))
    await asyncio.sleep(0)
    talk.close()

    with pytest.raises(EngineClosedError):
        await step
    with pytest.raises(EngineClosedError):
        await engine.step(talk.sessions[0], StepInput(250, [5], None, wants_token=True))


async def test_a_cancelled_caller_leaves_the_engine_working(engine: Engine) -> None:
    talk = open_at(engine, 0)
    step = asyncio.ensure_future(engine.step(talk.sessions[0], StepInput(0, PROMPT, None, wants_token=True)))
    await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    talk.close()

    assert len(await open_at(engine, 0).generate(PROMPT, 2)) == 2


async def test_closing_the_engine_ends_all_steps_and_refuses_new_sessions(small: Engine) -> None:
    talk = open_at(small, 20)
    step = asyncio.ensure_future(small.step(talk.sessions[0], StepInput(0, None, hidden_rows(200), wants_token=True)))
    await asyncio.sleep(0)
    small.close()
    small.close()

    with pytest.raises(EngineClosedError):
        await step
    with pytest.raises(EngineClosedError):
        open_at(small, 20)
    talk.close()


async def test_a_bug_in_the_engines_thread_ends_everything_at_once_and_is_told(small: Engine) -> None:
    told: list[str] = []
    small.watch_failure(lambda: told.append("while it runs"))
    talk = open_at(small, 20)
    under_way = asyncio.ensure_future(
        small.step(talk.sessions[0], StepInput(0, None, hidden_rows(200), wants_token=True))
    )
    await asyncio.sleep(0)
    # Nobody sends such an event: it stands for a bug outside of any batch.
    small._loop.inbox.put("nonsense")  # type: ignore[arg-type]

    with pytest.raises(EngineClosedError, match="nonsense"):
        await under_way
    with pytest.raises(EngineClosedError, match="start the node again"):
        open_at(small, 20)
    with pytest.raises(EngineClosedError):
        await small.step(talk.sessions[0], StepInput(200, None, hidden_rows(1), wants_token=True))
    small.watch_failure(lambda: told.append("afterwards"))
    talk.close()
    small.close()

    assert told == ["while it runs", "afterwards"]


async def test_a_prompt_does_not_stop_others(engine: Engine) -> None:
    """While 250 rows are prefilled, another session draws several tokens."""
    talk, prompt = open_at(engine, 0), open_at(engine, 0)
    await talk.push(PROMPT)
    prefill = asyncio.ensure_future(prompt.push([7] * 250))
    drawn = 0
    while not prefill.done():
        await talk.push([40])
        drawn += 1
    talk.close()
    prompt.close()

    assert drawn >= 5


async def ends_in_order(engine: Engine, rows: int) -> list[str]:
    """Two prompts of so many rows, in steps of 20 that arrive at the same time: whose steps end when."""
    talks = {"a": open_at(engine, 0), "b": open_at(engine, 0)}
    order: list[str] = []

    async def run(name: str, position: int) -> None:
        await engine.step(talks[name].sessions[0], StepInput(position, [7] * 20, None, wants_token=False))
        order.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name in talks:
            for position in range(0, rows, 20):
                tasks.create_task(run(name, position))
    for talk in talks.values():
        talk.close()
    return order


async def test_short_prompts_are_finished_one_after_the_other(engine: Engine) -> None:
    assert await ends_in_order(engine, 60) == ["a"] * 3 + ["b"] * 3


async def test_long_prompts_take_turns(engine: Engine) -> None:
    """After as many rows as a chunk may have, 64 here."""
    assert "".join(await ends_in_order(engine, 240)) == "aaaabbbb" * 3


async def test_a_running_text_does_not_notice_a_recut(model_path: Path, cache_dir: Path) -> None:
    engine = Engine.load(model_path, ALL, options(cache_dir, context_tokens=256))
    expected = await open_at(engine, 0).generate(PROMPT, 16)

    running = asyncio.ensure_future(open_at(engine, 0).generate(PROMPT, 16))
    await engine.recut(frozenset({22, 40}))
    entry_layers = engine.entry_layers
    assert await running == expected
    after = await generate_together([open_at(engine, 0)], [PROMPT], 16)
    engine.close()

    assert entry_layers == (0, 22)
    assert after == [expected]


async def test_an_old_cut_is_freed_with_its_last_session(small: Engine) -> None:
    talk = open_at(small, 20)
    old = weakref.ref(talk.sessions[0].generation)
    await small.recut(frozenset({25}))
    assert small.generation_count == 2

    talk.close()
    talk.sessions.clear()
    await small.step(
        small.open_session(SessionId("s"), LayerRange(25, 29), GREEDY), StepInput(0, None, hidden_rows(1), True)
    )
    gc.collect()

    assert small.generation_count == 1
    assert old() is None
    with pytest.raises(EntryLayerError):
        open_at(small, 21)


async def test_slots_are_counted_across_cuts(small: Engine) -> None:
    old = open_at(small, 20)
    await small.recut(frozenset({25}))
    new = open_at(small, 25)

    with pytest.raises(NoFreeSlotError):
        open_at(small, 25)
    old.close()
    open_at(small, 20).close()
    new.close()


async def test_cutting_as_it_is_cut_already_changes_nothing(small: Engine) -> None:
    talk = open_at(small, 20)
    generation = talk.sessions[0].generation
    await small.recut(frozenset({3, 20}))

    assert open_at(small, 20).sessions[0].generation is generation


def test_the_benchmark_measures_this_shard_and_honours_the_delay(model_path: Path, cache_dir: Path) -> None:
    layers = LayerRange(27, 29)
    fast = Engine.load(model_path, layers, options(cache_dir))
    slow = Engine.load(model_path, layers, replace(options(cache_dir), layer_delay_s=0.01))

    speeds = fast.measure_layer_tokens_per_s(), slow.measure_layer_tokens_per_s()
    assert fast.queue_depth == slow.queue_depth == 0
    fast.close()
    slow.close()

    assert 0 < speeds[1] <= 100 < speeds[0]


async def test_a_step_that_llama_cpp_refuses_costs_only_its_own_session(engine: Engine) -> None:
    expected = await open_at(engine, 0).generate(PROMPT, 4)
    victim, other = open_at(engine, 0), open_at(engine, 0)
    await victim.push(PROMPT)
    session = victim.sessions[0]
    # A row that the engine knows nothing of: the cache and the session disagree from here on.
    stray = SequenceRows(session.slot, victim.position, 1, np.array([5], np.int32), None, wants_logits=False)
    session.generation.segments[0].decode([stray])

    failed, text = await asyncio.gather(victim.push([6]), other.generate(PROMPT, 4), return_exceptions=True)

    assert isinstance(failed, DecodeError)
    assert text == expected
    with pytest.raises(DecodeError):
        await engine.step(session, StepInput(session.next_position, [7], None, wants_token=True))
    victim.close()
    assert await open_at(engine, 0).generate(PROMPT, 4) == expected


async def test_what_a_step_is_refused_for_is_told_to_who_waits_for_it(engine: Engine) -> None:
    """And not at once: a head hands the next step in before it has shown the token at hand."""
    talk = open_at(engine, 0)
    talk.close()

    refused = engine.step(talk.sessions[0], StepInput(0, PROMPT, None, wants_token=True))

    with pytest.raises(EngineClosedError):
        await refused


def test_a_failed_decode_leaves_the_context_usable(model: ModelFile) -> None:
    shape = SegmentShape(layer_count=30, hidden_size=576, takes_tokens=True, gives_logits=True)
    cache = cache_types(model, is_exact=True, on_gpu=False)
    settings = SegmentSettings(slots=2, context_tokens=256, rows_max=64, threads=1, gpu_layers=0, cache=cache)
    segment = Segment(model.path, shape, settings)

    def rows(slot: int, position: int) -> SequenceRows:
        return SequenceRows(slot, position, 2, np.array([5, 6], np.int32), None, wants_logits=True)

    segment.decode([rows(0, 0)])
    with pytest.raises(DecodeError, match="position"):
        segment.decode([rows(0, 9), rows(1, 0)])
    (result,) = segment.decode([rows(0, 2)])
    assert result.logits is not None
    segment.close()
