"""What a node's slots and chunk size cost and bring: the figures behind the defaults of ``meshnet node``.

``slots``: two one-thread nodes, and as many streams at once as they have slots, for each number of slots; what all
of them get per second, what one of them gets, and a node's memory. Streams share a decode, which reads the weights
once, so the total grows until computing takes longer than reading; each stream's own speed only falls. ``chunk``: one
node with all layers, where nothing else bounds a chunk, and a prompt of 1,500 tokens; its tokens per second alone, then
beside a stream that is being answered, with that one's longest pause, and the node's memory. Beside others a prompt
is computed in small pieces whatever the option says, so there it should change nothing.

    uv run python benchmarks/node_options.py slots|chunk [--values 1,2,4,8,16] [--rounds 2]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp

from long_prompt import long_prompt
from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.tracker_api import served_models
from meshnet_node.model_source import resolve_model
from peers import PROMPT, chat_body, stream_chat, two_nodes

PROMPT_TOKENS = 1500
BESIDE_TOKENS = 1500
"""Of the stream beside a long prompt: more than are drawn while that is computed."""
ARRIVALS_ALONE = 10
SWEEPS = {"slots": "1,2,4,8,16", "chunk": "32,64,128,256,512"}


async def many_streams(mesh: Mesh, streams: int, rounds: int, tokens: int) -> dict[str, Any]:
    totals, singles = [], []
    model = served_models(mesh.url)[0]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:
        for number in range(rounds + 1):
            bodies = [chat_body(model, tokens=tokens, prompt=f"{number} {n}: {PROMPT}") for n in range(streams)]
            began_s = perf_counter()
            done = await asyncio.gather(*(stream_chat(http, mesh.url, body) for body in bodies))
            if number:  # the first round warms up
                totals.append(sum(stream.tokens for stream in done) / (perf_counter() - began_s))
                singles += [stream.decode_tokens_per_s for stream in done]
    return {
        "tokens_per_s": round(statistics.median(totals), 1),
        "one_stream_tokens_per_s": round(statistics.median(singles), 1),
        "node_mb": nodes_mb(mesh),
    }


async def prompt_alone_and_beside(mesh: Mesh, rounds: int) -> dict[str, Any]:
    alone, beside, pauses, steps = [], [], [], []
    model = served_models(mesh.url)[0]

    def prompt(number: int) -> dict[str, Any]:
        return chat_body(model, tokens=1, prompt=long_prompt(PROMPT_TOKENS, number=number))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        await stream_chat(http, mesh.url, chat_body(model, tokens=8))  # warms up
        for number in range(rounds):
            alone.append(PROMPT_TOKENS / (await stream_chat(http, mesh.url, prompt(2 * number))).first_s)
            body = chat_body(model, tokens=BESIDE_TOKENS, prompt=f"{number}")
            async with aclosing(arrivals_of(http, mesh.url, body)) as other, asyncio.TaskGroup() as tasks:
                arrivals = [await anext(other) for _ in range(ARRIVALS_ALONE)]
                began_s = perf_counter()
                computing = tasks.create_task(stream_chat(http, mesh.url, prompt(2 * number + 1)))
                while not computing.done():
                    arrivals.append(await anext(other))
            gaps = [(end_s, end_s - start_s) for start_s, end_s in pairwise(arrivals)]
            beside.append(PROMPT_TOKENS / computing.result().first_s)
            pauses.append(max(gap for at, gap in gaps if at >= began_s))
            steps.append(statistics.median(gap for at, gap in gaps if at < began_s))
    return {
        "prompt_tokens_per_s": round(statistics.median(alone)),
        "beside_tokens_per_s": round(statistics.median(beside)),
        "pause_beside_s": round(statistics.median(pauses), 3),
        "step_alone_s": round(statistics.median(steps), 3),
        "node_mb": nodes_mb(mesh),
    }


async def arrivals_of(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> AsyncGenerator[float, None]:
    """When each chunk of a stream came."""
    async with http.post(f"{url}/v1/chat/completions", json=body | {"stream": True}) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                yield perf_counter()


@contextmanager
def one_node(model: Path, *, options: Sequence[str]) -> Iterator[Mesh]:
    with tempfile.TemporaryDirectory() as folder, Mesh(Path(folder), free_port(0), str(model)) as mesh:
        mesh.start_tracker()
        mesh.start_node("whole", "0-29", layer_delay_ms=0, options=options)
        mesh.wait_node("whole", entry_layers=[0])
        yield mesh


def nodes_mb(mesh: Mesh) -> list[int]:
    return [resident_mb(child.process.pid) for child in mesh.children if child.name != "tracker"]


def resident_mb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1000 for line in lines if line.startswith("VmRSS:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", choices=list(SWEEPS))
    parser.add_argument("--values", help="with commas between")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cut", type=int, default=17, help="first layer of the second node")
    parser.add_argument("--exact", default="auto")
    options = parser.parse_args()
    model = resolve_model(options.model)
    figures: dict[int, dict[str, Any]] = {}
    for value in map(int, (options.values or SWEEPS[options.sweep]).split(",")):
        if options.sweep == "slots":
            room = ["--slots", str(value), "--exact", options.exact]
            with two_nodes(model, cut=options.cut, options=room) as mesh:
                figures[value] = asyncio.run(many_streams(mesh, value, options.rounds, options.tokens))
        else:
            with one_node(model, options=["--chunk-tokens", str(value), "--exact", options.exact]) as mesh:
                figures[value] = asyncio.run(prompt_alone_and_beside(mesh, options.rounds))
    print(json.dumps({"benchmark": "node_options", "sweep": options.sweep, "exact": options.exact, "figures": figures}))


if __name__ == "__main__":
    main()
