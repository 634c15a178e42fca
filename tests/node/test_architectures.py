"""Each verified architecture, cut wherever it may be cut, computes what the whole model computes: bit for bit."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from meshnet_node.engine.architectures import (
    REFUSED_ARCHITECTURES,
    VERIFIED_ARCHITECTURES,
    check_context,
    check_cut,
    enterable_at,
)
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import slice_layers
from meshnet_node.engine.segment import FloatRows
from meshnet_node.engine.thread import Engine
from meshnet_node.errors import LayerKindsError, SettingsError, UnsupportedArchitectureError
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.prefix import prefix_chain
from node.engine_helpers import GREEDY, Chain, Talk, generate_together, options, write_tiny_model
from node.tiny_models import LAYERS, NEEDS_OUTPUT, ORIGINAL_CONTEXT, write_tiny

PROMPT = list(range(3, 60))
HYBRID = ["qwen35", "qwen35moe"]


def assert_same(expected: Sequence[FloatRows], got: Sequence[FloatRows]) -> None:
    for index, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert np.isfinite(a).all()
        assert np.array_equal(a, b), f"logits differ at step {index} by up to {np.abs(a - b).max()}"


def every_cut(model: ModelFile) -> list[tuple[int, ...]]:
    """Each single cut that is allowed, and two ways of cutting twice."""
    whole = LayerRange(0, model.layer_count - 1)
    singles: list[tuple[int, ...]] = [
        (cut,) for cut in range(1, model.layer_count) if enterable_at(model, whole, frozenset({cut}))
    ]
    doubles = [(2, 4), (5, 6), (3, 7)]
    return singles + [cuts for cuts in doubles if enterable_at(model, whole, frozenset(cuts)) == set(cuts)]


def test_every_verified_architecture_is_tested_here() -> None:
    assert set(LAYERS) == set(VERIFIED_ARCHITECTURES)
    assert not set(REFUSED_ARCHITECTURES) & set(VERIFIED_ARCHITECTURES)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", sorted(LAYERS))
def test_a_split_at_any_layer_gives_the_whole_models_logits(tmp_path: Path, architecture: str, tied: bool) -> None:
    if tied and architecture in NEEDS_OUTPUT:
        pytest.skip("llama.cpp has no tied models of this kind")
    model = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", architecture, layer_count=9, tied=tied))
    whole = Chain.load(model, (), tmp_path)
    expected = whole.follow(0, PROMPT, 4)
    whole.close()
    cuts = every_cut(model)
    assert len(cuts) >= 3

    for cut in cuts:
        split = Chain.load(model, cut, tmp_path)
        assert_same(expected, split.follow(1, PROMPT, 4))
        split.close()


@pytest.mark.parametrize("cuts", [(22,), (21,), (7, 22)])
def test_forty_hybrid_layers_with_experts_are_cut_at_22(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    model = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", "qwen35moe", layer_count=40))
    whole, split = Chain.load(model, (), tmp_path), Chain.load(model, cuts, tmp_path)

    assert_same(whole.follow(0, PROMPT, 4), split.follow(1, PROMPT, 4))
    whole.close()
    split.close()


@pytest.mark.parametrize("architecture", sorted(LAYERS))
def test_several_users_in_one_batch_get_the_whole_models_logits(tmp_path: Path, architecture: str) -> None:
    model = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", architecture))
    cut = next(iter(enterable_at(model, LayerRange(0, 7), frozenset({5}))))
    rows = {3: PROMPT[:7], 0: PROMPT[20:27], 1: PROMPT[40:47]}  # a gap at 2: llama.cpp makes two ubatches
    whole, split = Chain.load(model, (), tmp_path), Chain.load(model, (cut,), tmp_path)

    for step in (rows, {3: [5], 0: [6], 1: [7]}, {0: [9], 1: [9]}, {1: [4], 3: [8], 0: [2]}):
        expected, got = whole.run(step), split.run(step)
        assert_same(list(expected.values()), list(got.values()))
    whole.close()
    split.close()


@pytest.mark.parametrize("architecture", HYBRID)
async def test_users_of_a_hybrid_model_get_their_own_text_while_others_come_and_go(
    tmp_path: Path, architecture: str
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", architecture)
    settings = options(tmp_path)
    whole = Engine.load(path, None, settings)
    head, tail = Engine.load(path, LayerRange(0, 3), settings), Engine.load(path, LayerRange(4, 7), settings)
    prompts = [PROMPT[:3], PROMPT[:40], PROMPT[10:11], PROMPT[5:25]]
    try:
        alone = [await Talk.open([whole]).generate(prompt, 6) for prompt in prompts]
        one_by_one = [await Talk.open([head, tail]).generate(prompt, 6) for prompt in prompts]
        used_slots = await generate_together([Talk.open([head, tail]) for _ in prompts], prompts, 6)
        again = [await Talk.open([head, tail]).generate(prompt, 6) for prompt in prompts]
    finally:
        for engine in (whole, head, tail):
            engine.close()

    assert one_by_one == again == alone
    assert [len(text) for text in used_slots] == [6, 6, 6, 6]


@pytest.mark.parametrize(("architecture", "held"), [("llama", 64), ("gemma3", 64), ("olmo2", 64), ("qwen35moe", 0)])
async def test_a_slot_remembers_where_it_can_be_rewound_and_the_text_that_goes_on_is_the_same(
    tmp_path: Path, architecture: str, held: int
) -> None:
    """Windows are shorter than the prompt; the state of recurrent layers cannot be taken back to its middle."""
    engine = Engine.load(write_tiny(tmp_path / "tiny.gguf", architecture), None, options(tmp_path, slots=2))
    first, second = (list(range(3, 73)) + [end] * 9 for end in (5, 7))
    try:
        fresh = await Talk.open([engine]).generate(second, 8)
        talk = Talk.open([engine])
        await talk.push(first)
        engine.close_session(talk.sessions[0], remember=prefix_chain(first))
        session = engine.open_session(SessionId("s"), engine.shard, GREEDY, prefix=prefix_chain(second))
        remembered = session.held_tokens
        going_on = Talk([engine], [session], position=remembered)
        reused = await going_on.generate(second[remembered:], 8)
    finally:
        engine.close()

    assert remembered == held
    assert reused == fresh


def test_layers_that_predict_further_tokens_are_no_layers_of_the_mesh(tmp_path: Path) -> None:
    with_them = ModelFile.open(write_tiny(tmp_path / "with.gguf", "qwen35moe", next_token_layers=1))
    without = ModelFile.open(write_tiny(tmp_path / "without.gguf", "qwen35moe"))
    whole, split = Chain.load(without, (), tmp_path / "a"), Chain.load(with_them, (4,), tmp_path / "b")

    assert with_them.layer_count == 8
    assert_same(whole.follow(0, PROMPT, 3), split.follow(0, PROMPT, 3))
    whole.close()
    split.close()


def test_recurrent_layers_are_spelled_out_so_that_a_cut_may_fall_anywhere(tmp_path: Path) -> None:
    model = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", "qwen35moe"))
    slice_layers(model, LayerRange(3, 6), tmp_path / "slice.gguf")

    fields = GGUFReader(tmp_path / "slice.gguf").fields

    assert fields["qwen35moe.attention.recurrent_layers"].contents() == [False, True, True, True]


@pytest.mark.parametrize(("layers", "nearest"), [("0-2", "0-3"), ("3-3", "3-4"), ("4-6", "4-7"), ("7-7", "6-7")])
def test_a_part_of_a_hybrid_model_with_one_kind_of_layer_is_refused_before_loading(
    tmp_path: Path, layers: str, nearest: str
) -> None:
    model = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", "qwen35moe"))

    with pytest.raises(LayerKindsError, match=f"choose for instance {nearest}"):
        check_cut(model, LayerRange.parse(layers))


def test_what_that_refusal_spares_us_is_real(tmp_path: Path) -> None:
    """llama.cpp ends the whole process if a hybrid segment has one kind only: the day it does not, drop the rule."""
    path = write_tiny(tmp_path / "tiny.gguf", "qwen35moe", layer_count=3)
    script = f"""
import sys
from pathlib import Path
import numpy as np
from meshnet_node.engine.cache_types import cache_types
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.segment import Segment, SegmentSettings, SegmentShape, SequenceRows
path = Path({str(path)!r})
cache = cache_types(ModelFile.open(path), is_exact=True, on_gpu=False)
segment = Segment(path, SegmentShape(3, 64, True, True), SegmentSettings(1, 64, 8, 1, 0, cache))
segment.decode([SequenceRows(0, 0, 1, np.asarray([5], np.int32), None, True)])
print("alive")
"""

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert "alive" not in run.stdout


def test_entry_layers_that_would_leave_an_impossible_part_are_passed_over(tmp_path: Path) -> None:
    model = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", "qwen35moe"))

    assert enterable_at(model, LayerRange(0, 7), frozenset({2, 5, 7})) == {5}


def test_an_engine_asked_for_an_impossible_entry_keeps_the_possible_ones(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", "qwen35moe")
    engine = Engine.load(path, None, options(tmp_path), entry_layers=frozenset({1, 4}))

    entry_layers = engine.entry_layers
    engine.close()

    assert entry_layers == (0, 4)


@pytest.mark.parametrize("architecture", sorted(REFUSED_ARCHITECTURES))
def test_kinds_that_a_cut_would_change_are_refused_with_the_reason(tmp_path: Path, architecture: str) -> None:
    model = ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf", architecture=architecture))

    with pytest.raises(UnsupportedArchitectureError) as refusal:
        check_cut(model, LayerRange(0, 1))

    assert REFUSED_ARCHITECTURES[architecture] in str(refusal.value)


def test_a_context_that_would_change_the_rope_factors_is_refused(tmp_path: Path) -> None:
    model = ModelFile.open(write_tiny(tmp_path / "tiny.gguf", "phi3"))

    check_context(model, ORIGINAL_CONTEXT)
    with pytest.raises(SettingsError, match=f"--context-tokens {ORIGINAL_CONTEXT}"):
        check_context(model, ORIGINAL_CONTEXT + 1)
