"""What the engine's tests share: chains of bare segments, chats through an engine, and tiny random models."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from meshnet_node.engine.cache_types import cache_types
from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.engine.gguf_slice import cached_slice
from meshnet_node.engine.sampling import TokenSampler
from meshnet_node.engine.segment import FloatRows, Segment, SegmentSettings, SegmentShape, SequenceRows
from meshnet_node.engine.thread import Engine, EngineOptions, EngineSession, StepInput
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_protocol.ids import SessionId
from meshnet_protocol.layers import LayerRange
from meshnet_protocol.messages import Sampling

GREEDY = Sampling(temperature=0.0)


@dataclass
class Chain:
    """Segments that follow one another, run without an engine."""

    segments: list[Segment]
    _next_position: dict[int, int] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        model: ModelFile,
        cuts: Sequence[int],
        cache_dir: Path,
        *,
        rows_max: int = 256,
        context_tokens: int = 512,
        first: int = 0,
    ) -> "Chain":
        shard = LayerRange(first, model.layer_count - 1)
        cache = cache_types(model, is_exact=True, on_gpu=False)
        settings = SegmentSettings(
            slots=4, context_tokens=context_tokens, rows_max=rows_max, threads=1, gpu_layers=0, cache=cache
        )
        segments = []
        for layers in shard.cut_at(set(cuts)):
            shape = SegmentShape(
                layer_count=layers.layer_count,
                hidden_size=model.hidden_size,
                takes_tokens=layers.first == 0,
                gives_logits=layers.next_layer == model.layer_count,
            )
            segments.append(Segment(cached_slice(model, layers, cache_dir), shape, settings))
        return cls(segments)

    def run(self, rows: Mapping[int, Sequence[int]]) -> dict[int, FloatRows]:
        """Last-row logits of each slot after these token ids, the same number for each slot."""
        hidden: dict[int, FloatRows | None] = dict.fromkeys(rows)
        logits: dict[int, FloatRows] = {}
        for segment in self.segments:
            inputs = [
                SequenceRows(
                    slot=slot,
                    position=self._next_position.get(slot, 0),
                    row_count=len(tokens),
                    tokens=np.asarray(tokens, np.int32) if segment.shape.takes_tokens else None,
                    hidden=hidden[slot],
                    wants_logits=True,
                )
                for slot, tokens in rows.items()
            ]
            for slot, result in zip(rows, segment.decode(inputs), strict=True):
                hidden[slot] = result.hidden
                if result.logits is not None:
                    logits[slot] = result.logits.copy()
        for slot, tokens in rows.items():
            self._next_position[slot] = self._next_position.get(slot, 0) + len(tokens)
        return logits

    def prefill(self, slot: int, prompt: Sequence[int], *, chunk: int) -> FloatRows:
        for start in range(0, len(prompt), chunk):
            logits = self.run({slot: prompt[start : start + chunk]})[slot]
        return logits

    def follow(self, slot: int, prompt: Sequence[int], count: int, *, chunk: int = 64) -> list[FloatRows]:
        """Logits at the prompt's end and after each of the ``count`` greedy tokens that follow."""
        seen = [self.prefill(slot, prompt, chunk=chunk)]
        for _ in range(count):
            seen.append(self.run({slot: [int(seen[-1].argmax())]})[slot])
        return seen

    def forget(self, slot: int) -> None:
        self._next_position.pop(slot, None)
        for segment in self.segments:
            segment.forget(slot)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()


@dataclass
class Talk:
    """A chat over a chain of engines, head first: what the network does, without the network."""

    engines: list[Engine]
    sessions: list[EngineSession]
    position: int = 0

    @classmethod
    def open(cls, engines: Sequence[Engine], *, starts: Sequence[int] = (), sampling: Sampling = GREEDY) -> "Talk":
        """``starts``: the layer each engine is entered at; its shard's first by default."""
        firsts = list(starts) or [engine.shard.first for engine in engines]
        sessions = [
            engine.open_session(SessionId("s"), LayerRange(first, engine.shard.last), sampling)
            for engine, first in zip(engines, firsts, strict=True)
        ]
        return cls(list(engines), sessions)

    async def push(self, tokens: Sequence[int], *, wants_token: bool = True) -> int | None:
        """Run tokens through all engines; the token drawn at the tail."""
        step = StepInput(self.position, tokens, None, wants_token)
        for engine, session in zip(self.engines, self.sessions, strict=True):
            result = await engine.step(session, step)
            step = StepInput(self.position, None, result.hidden, wants_token)
        self.position += len(tokens)
        return result.token_id

    async def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """``count`` tokens after the prompt; the session is closed at the end."""
        drawn: list[int] = []
        try:
            rows = list(prompt)
            while len(drawn) < count:
                token = await self.push(rows)
                assert token is not None
                drawn.append(token)
                rows = [token]
        finally:
            self.close()
        return drawn

    def close(self) -> None:
        for engine, session in zip(self.engines, self.sessions, strict=True):
            engine.close_session(session)


async def generate_together(talks: Sequence[Talk], prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    return list(
        await asyncio.gather(*(talk.generate(prompt, count) for talk, prompt in zip(talks, prompts, strict=True)))
    )


def options(cache_dir: Path, *, slots: int = 4, context_tokens: int = 512, chunk_tokens: int = 64) -> EngineOptions:
    return EngineOptions(cache_dir=cache_dir, slots=slots, context_tokens=context_tokens, chunk_tokens=chunk_tokens)


TINY_HIDDEN = 64
TINY_VOCABULARY = 160


def write_tiny_model(
    path: Path,
    *,
    architecture: str = "llama",
    layer_count: int = 6,
    tied: bool = False,
    extend: Callable[[GGUFWriter], None] = lambda _: None,
) -> Path:
    """A random model with a byte vocabulary, small enough to be made in a test. Seeded: always the same."""
    rng = np.random.default_rng(7)
    writer = GGUFWriter(path, architecture)
    writer.add_name("Tiny Random")
    writer.add_block_count(layer_count)
    writer.add_context_length(512)
    writer.add_embedding_length(TINY_HIDDEN)
    writer.add_feed_forward_length(96)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_rope_dimension_count(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(TINY_VOCABULARY)
    _add_byte_vocabulary(writer)
    extend(writer)

    def add(name: str, *shape: int, scale: float = 0.2) -> None:
        center = 1.0 if name.endswith("norm.weight") else 0.0
        writer.add_tensor(name, (center + scale * rng.standard_normal(shape)).astype(np.float32))

    add("token_embd.weight", TINY_VOCABULARY, TINY_HIDDEN, scale=1.0)
    add("output_norm.weight", TINY_HIDDEN)
    if not tied:
        add("output.weight", TINY_VOCABULARY, TINY_HIDDEN)
    for layer in range(layer_count):
        for name, shape in _layer_tensors(architecture).items():
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _layer_tensors(architecture: str) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, tuple[int, ...]] = {
        "attn_norm": (TINY_HIDDEN,),
        "attn_q": (64, TINY_HIDDEN),
        "attn_k": (32, TINY_HIDDEN),
        "attn_v": (32, TINY_HIDDEN),
        "attn_output": (TINY_HIDDEN, 64),
        "ffn_norm": (TINY_HIDDEN,),
        "ffn_gate": (96, TINY_HIDDEN),
        "ffn_up": (96, TINY_HIDDEN),
        "ffn_down": (TINY_HIDDEN, 96),
    }
    if architecture == "gemma3":
        tensors |= {
            "attn_q_norm": (32,),
            "attn_k_norm": (32,),
            "post_attention_norm": (TINY_HIDDEN,),
            "post_ffw_norm": (TINY_HIDDEN,),
        }
    return tensors


def _add_byte_vocabulary(writer: GGUFWriter) -> None:
    tokens = [f"t{index:03}" for index in range(TINY_VOCABULARY)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * TINY_VOCABULARY)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def follows(vocabulary: Vocabulary, grammar: str, written: str) -> bool:
    """Whether a grammar lets all of the text be drawn, and then lets it end."""
    sampler = TokenSampler(Sampling(temperature=0, grammar=grammar), vocabulary)
    tokens = [*vocabulary.tokenize(written, add_special=False, parse_special=False), vocabulary.end_token]
    for position, token in enumerate(tokens):
        logits = np.zeros(vocabulary.size, np.float32)
        logits[token] = 10
        if sampler.draw(logits, position=position).token_id != token:
            return False
    return True
