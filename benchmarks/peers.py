"""Both sides of a comparison, each behind one call, so that a benchmark can run them in turn."""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import msgspec

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_protocol.messages import ChatChunk

# Whoever stops a benchmark stops its processes too: their contexts are left.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

PROMPT = "Write a long story about a lighthouse keeper, an old boat and a storm. Take your time."


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished stream as its client saw it, in seconds from the request on."""

    headers_s: float
    first_s: float
    """Until the first token's text."""
    total_s: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """End to end: the prompt's time counts."""
        return self.tokens / self.total_s

    @property
    def decode_tokens_per_s(self) -> float:
        return (self.tokens - 1) / (self.total_s - self.first_s)


@contextmanager
def two_nodes(model: Path, *, cut: int, options: Sequence[str] = ()) -> Iterator[Mesh]:
    """Our side: a tracker and two one-thread nodes of a model of 30 layers, the second from layer ``cut`` on."""
    with tempfile.TemporaryDirectory() as folder, Mesh(Path(folder), free_port(0), str(model)) as mesh:
        mesh.start_tracker()
        mesh.start_node("first", f"0-{cut - 1}", layer_delay_ms=0, options=options)
        mesh.start_node("second", f"{cut}-29", layer_delay_ms=0, options=options)
        mesh.wait_node("first", entry_layers=[0])
        mesh.wait_node("second", entry_layers=[cut])
        yield mesh


class WholeModelProcess:
    """llama.cpp with the whole model in one process; idle between calls."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.huge_mb = 0.0
        """Of its model's file, mapped in huge pages; known after a run."""

    def run(self, prompt: Sequence[int], tokens: int) -> Stream:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompt": list(prompt), "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        first_s = float(answer["first_s"])
        self.huge_mb = float(answer["huge_mb"])
        return Stream(first_s, first_s, float(answer["seconds"]), len(answer["token_ids"]))


@contextmanager
def whole_model_process(model: Path, *, threads: int) -> Iterator[WholeModelProcess]:
    script = Path(__file__).with_name("whole_model.py")
    command = [sys.executable, str(script), "--model", str(model), "--threads", str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("the whole-model process did not start")
        yield WholeModelProcess(process)
        process.kill()


@contextmanager
def whole_model_server(model: Path, *, threads: int, slots: int, context_tokens: int) -> Iterator[str]:
    """llama.cpp's own server with the whole model; yields its base URL. The first time, uv fetches the package."""
    script = Path(__file__).with_name("peer_server.py")
    command = ["uv", "run", "--no-project", "--with", "xllamacpp", "python", str(script), "--model", str(model)]
    command += ["--threads", str(threads), "--slots", str(slots), "--context-tokens", str(context_tokens)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            for line in process.stdout:
                if line.startswith("http"):
                    yield line.strip()
                    break
            else:
                raise RuntimeError(f"the peer did not start: {' '.join(command)}")
        finally:
            process.stdin.close()
            process.terminate()


def ratio_figures(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """What rounds of (our, the peer's) tokens per second come to: medians, and the ratio with its extremes."""
    ratios = [ours / theirs for ours, theirs in pairs]
    return {
        "tokens_per_s": round(statistics.median(ours for ours, _ in pairs), 1),
        "peer_tokens_per_s": round(statistics.median(theirs for _, theirs in pairs), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }


async def stream_chat(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Stream:
    """One streaming chat at ``url``; raises RuntimeError on any error it answers."""
    started = perf_counter()
    first_s = 0.0
    tokens = 0
    async with http.post(f"{url}/v1/chat/completions", json=body | {"stream": True}) as response:
        headers_s = perf_counter() - started
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = msgspec.json.decode(line[6:], type=ChatChunk)
            if chunk.error is not msgspec.UNSET:
                raise RuntimeError(str(chunk.error))
            if chunk.choices and chunk.choices[0].delta.content and not first_s:
                first_s = perf_counter() - started
            if chunk.usage is not msgspec.UNSET and chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
    return Stream(headers_s, first_s, perf_counter() - started, tokens)


def chat_body(model: str, *, tokens: int, prompt: str = PROMPT) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": False,
    }
