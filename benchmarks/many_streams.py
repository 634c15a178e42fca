"""Many streams over two one-thread nodes, against llama.cpp's own server with the whole model and two threads.

Both use two cores. The peer runs all streams in one batch on both; two nodes work at the same time, each on a batch of
half of the streams. So the ceiling is what two threads lose by working on one matrix product together, less what two
half batches cost more than a whole one. It depends on the machine: on an AMD EPYC two threads take 34 ms for 8 rows
of SmolLM2 (Q4_1) and one takes 36 ms for 4, two nodes 18 each, which makes it 0.94 before anything of ours. Both sides
run in turn, round by round, with the same prompts and numbers of tokens; figures are all tokens over the time until
the last stream has ended. Also reported: how long a newcomer with a short prompt waits for the first token while
another user's long prompt is being computed, and a decode step's time beside it.

    uv run python benchmarks/many_streams.py [--rounds 3] [--streams 8] [--tokens 64]
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import aiohttp

from long_prompt import long_prompt
from meshnet_cli.demo.processes import Mesh
from meshnet_cli.tracker_api import served_models
from meshnet_node.model_source import resolve_model
from peers import PROMPT, Stream, chat_body, ratio_figures, stream_chat, two_nodes, whole_model_server

CONTEXT_TOKENS = 2048
TARGET = 1.1


async def run_round(http: aiohttp.ClientSession, url: str, model: str, streams: int, tokens: int, first: int) -> float:
    """Tokens per second of all streams together; ``first`` keeps their prompts apart from other rounds'."""
    bodies = [chat_body(model, tokens=tokens, prompt=f"{first + number}: {PROMPT}") for number in range(streams)]
    began_s = perf_counter()
    done = await asyncio.gather(*(stream_chat(http, url, body) for body in bodies))
    return sum(stream.tokens for stream in done) / (perf_counter() - began_s)


async def first_token_beside_a_long_prompt(http: aiohttp.ClientSession, url: str, model: str, number: int) -> Stream:
    """A short chat that arrives just after one of 1,500 tokens."""
    body = chat_body(model, tokens=4, prompt=long_prompt(1500, number=number))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stream_chat(http, url, body))
        await asyncio.sleep(0.3)
        return await stream_chat(http, url, chat_body(model, tokens=32, prompt=f"Hi {number}"))


async def measure(mesh: Mesh, peer_url: str, options: argparse.Namespace) -> dict[str, Any]:
    model = served_models(mesh.url)[0]
    pairs: list[tuple[float, float]] = []
    beside: list[tuple[Stream, Stream]] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:
        for number in range(options.rounds + 1):
            first = number * options.streams
            ours = await run_round(http, mesh.url, model, options.streams, options.tokens, first)
            theirs = await run_round(http, peer_url, model, options.streams, options.tokens, first)
            if number:  # the first round warms both sides up
                pairs.append((ours, theirs))
        for number in range(options.rounds):
            waited = [await first_token_beside_a_long_prompt(http, url, model, number) for url in (mesh.url, peer_url)]
            beside.append((waited[0], waited[1]))
    return {
        **ratio_figures(pairs),
        "first_token_beside_long_prompt_s": round(statistics.median(ours.first_s for ours, _ in beside), 3),
        "peer_first_token_beside_long_prompt_s": round(statistics.median(theirs.first_s for _, theirs in beside), 3),
        "step_beside_long_prompt_s": round(statistics.median(1 / ours.decode_tokens_per_s for ours, _ in beside), 4),
    }


def options_parser(description: str | None, *, rounds: int, tokens: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=tokens)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cut", type=int, default=17, help="first layer of the second node, or of a peer's worker")
    return parser


@contextmanager
def both_sides(options: argparse.Namespace) -> Iterator[tuple[Mesh, str]]:
    """Our mesh and the peer's base URL, with as many slots as there are streams."""
    path = resolve_model(options.model)
    room = ["--slots", str(options.streams), "--context-tokens", str(CONTEXT_TOKENS)]
    with (
        two_nodes(path, cut=options.cut, options=room) as mesh,
        whole_model_server(path, threads=2, slots=options.streams, context_tokens=CONTEXT_TOKENS) as peer_url,
    ):
        yield mesh, peer_url


def main() -> None:
    options = options_parser(__doc__, rounds=3, tokens=64).parse_args()
    with both_sides(options) as (mesh, peer_url):
        figures = asyncio.run(measure(mesh, peer_url, options))
    print(json.dumps({"benchmark": "many_streams", "streams": options.streams, **figures, "target": TARGET}))


if __name__ == "__main__":
    main()
