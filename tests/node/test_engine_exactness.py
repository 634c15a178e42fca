"""Splitting, batching and chunking change nothing: logits are equal bit for bit, texts token for token."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.segment import FloatRows
from meshnet_node.engine.thread import Engine
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import Sampling
from node.engine_helpers import Chain, Talk, generate_together, options, write_tiny_model

LONG_PROMPT_TOKENS = 230
NEW_TOKENS = 42


@pytest.fixture(scope="module")
def long_prompt(model: ModelFile) -> list[int]:
    rng = np.random.default_rng(3)
    return [int(token) for token in rng.integers(100, 40_000, LONG_PROMPT_TOKENS)]


@pytest.fixture(scope="module")
def whole(model: ModelFile, cache_dir: Path) -> Iterator[Chain]:
    chain = Chain.load(model, (), cache_dir)
    yield chain
    chain.close()


@pytest.fixture(scope="module")
def engines(model: ModelFile, cache_dir: Path) -> Iterator[dict[str, Engine]]:
    """The whole model; a head of 0-16; and all layers again, to be entered at 17 and 22 too."""
    settings = options(cache_dir)
    built = {
        "whole": Engine.load(model.path, LayerRange(0, 29), settings),
        "head": Engine.load(model.path, LayerRange(0, 16), settings),
        "enterable": Engine.load(model.path, LayerRange(10, 29), settings, entry_layers=frozenset({17, 22})),
    }
    yield built
    for engine in built.values():
        engine.close()


def assert_same(expected: Sequence[FloatRows], got: Sequence[FloatRows]) -> None:
    for index, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert np.array_equal(a, b), f"logits differ at step {index} by up to {np.abs(a - b).max()}"


@pytest.mark.parametrize("cuts", [(1,), (17,), (29,), (7, 22)], ids=str)
def test_a_split_model_gives_the_whole_models_logits(
    whole: Chain, model: ModelFile, cache_dir: Path, long_prompt: list[int], cuts: tuple[int, ...]
) -> None:
    split = Chain.load(model, cuts, cache_dir)
    whole.forget(0)

    expected = whole.follow(0, long_prompt[:40], 10)
    got = split.follow(2, long_prompt[:40], 10)
    split.close()

    assert_same(expected, got)


@pytest.mark.parametrize("chunk", [1, 7, 32, 230])
def test_the_size_of_prefill_chunks_does_not_show(
    whole: Chain, model: ModelFile, cache_dir: Path, long_prompt: list[int], chunk: int
) -> None:
    whole.forget(0)
    whole.forget(1)

    expected = whole.follow(0, long_prompt, 2, chunk=64)
    got = whole.follow(1, long_prompt, 2, chunk=chunk)

    assert_same(expected, got)


def test_far_into_a_context_chunks_do_not_show_either(model: ModelFile, cache_dir: Path) -> None:
    """Beyond 512 positions llama.cpp cuts a lone row's attention over a cache of F16 alone; chunks of 64 it tiles."""
    prompt = [int(token) for token in np.random.default_rng(5).integers(100, 40_000, 640)]
    chain = Chain.load(model, (), cache_dir, context_tokens=768)

    expected = chain.follow(0, prompt, 4, chunk=128)
    got = chain.follow(1, prompt, 4, chunk=16)
    chain.close()

    assert_same(expected, got)


def test_rows_of_several_sequences_come_back_to_their_owners(
    whole: Chain, model: ModelFile, cache_dir: Path, long_prompt: list[int]
) -> None:
    split = Chain.load(model, (17,), cache_dir)
    prompts = {3: long_prompt[:5], 0: long_prompt[50:55], 1: long_prompt[90:95]}  # a gap at 2: two ubatches
    alone = {}
    for slot, prompt in prompts.items():
        whole.forget(0)
        alone[slot] = whole.run({0: prompt})[0]

    together = split.run(prompts)
    split.close()

    assert_same(list(alone.values()), list(together.values()))


async def test_greedy_text_is_the_same_on_one_two_and_three_segments(
    engines: dict[str, Engine], long_prompt: list[int]
) -> None:
    prompt = long_prompt[:30]
    whole, head, rest = engines["whole"], engines["head"], engines["enterable"]

    expected = await Talk.open([whole]).generate(prompt, NEW_TOKENS)
    entered = await Talk.open([head, rest], starts=[0, 17]).generate(prompt, NEW_TOKENS)

    assert entered == expected


async def test_users_of_mixed_lengths_get_the_text_they_would_get_alone(
    engines: dict[str, Engine], long_prompt: list[int]
) -> None:
    prompts = [long_prompt[:3], long_prompt[:140], long_prompt[60:61], long_prompt[100:150]]
    whole, head, rest = engines["whole"], engines["head"], engines["enterable"]
    alone = [await Talk.open([whole]).generate(prompt, 14) for prompt in prompts]

    batched = await generate_together([Talk.open([whole]) for _ in prompts], prompts, 14)
    split = await generate_together([Talk.open([head, rest], starts=[0, 17]) for _ in prompts], prompts, 14)

    assert batched == alone
    assert split == alone


async def test_a_seeded_text_is_the_same_alone_in_a_batch_and_split(
    engines: dict[str, Engine], long_prompt: list[int]
) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=-3)
    prompt = long_prompt[:25]
    whole, head, rest = engines["whole"], engines["head"], engines["enterable"]

    alone = await Talk.open([whole], sampling=sampling).generate(prompt, 20)
    other = await Talk.open([whole], sampling=Sampling(seed=4)).generate(prompt, 20)
    talks = [Talk.open([whole], sampling=sampling), Talk.open([whole]), Talk.open([whole], sampling=sampling)]
    batched = await generate_together(talks, [prompt, long_prompt[:9], prompt], 20)
    split = await Talk.open([head, rest], starts=[0, 17], sampling=sampling).generate(prompt, 20)

    assert other != alone
    assert batched[0] == batched[2] == split == alone


async def test_a_resumed_session_draws_the_tokens_that_were_due(
    engines: dict[str, Engine], long_prompt: list[int]
) -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    prompt = long_prompt[:20]
    whole = engines["whole"]

    unbroken = await Talk.open([whole], sampling=sampling).generate(prompt, 16)
    resumed = await Talk.open([whole], sampling=sampling).generate([*prompt, *unbroken[:9]], 7)

    assert unbroken[9:] == resumed


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_every_verified_architecture_splits_exactly_at_every_layer(
    tmp_path: Path, architecture: str, tied: bool
) -> None:
    def add_windows(writer: GGUFWriter) -> None:
        if architecture == "gemma3":
            writer.add_sliding_window(16)

    path = tmp_path / "tiny.gguf"
    model = ModelFile.open(
        write_tiny_model(path, architecture=architecture, layer_count=8, tied=tied, extend=add_windows)
    )
    prompt = list(range(3, 60))
    whole = Chain.load(model, (), tmp_path)
    expected = whole.follow(0, prompt, 4)

    for cuts in [(cut,) for cut in range(1, model.layer_count)] + [(2, 4), (5, 6)]:
        split = Chain.load(model, cuts, tmp_path)
        assert_same(expected, split.follow(1, prompt, 4))
        split.close()
    whole.close()
