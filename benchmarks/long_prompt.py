"""A prompt of 1,500 tokens over two one-thread nodes, against llama.cpp with the whole model in one thread.

While the second node computes one chunk of the prompt the first computes the next, so the ceiling is 2.0 less the
time in which the pipeline fills and empties (one chunk), and less what the cut's halves differ. Both sides run in
turn, pair by pair, on the same machine; figures are prompt tokens over the time until the first token.

    uv run python benchmarks/long_prompt.py [--pairs 3] [--prompt-tokens 1500]
"""

import argparse
import asyncio
import json
from pathlib import Path

import aiohttp

from meshnet_cli.demo.processes import Mesh
from meshnet_cli.tracker_api import served_models
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_node.model_source import resolve_model
from meshnet_node.prompt import understand
from meshnet_protocol.messages import HeadRequest
from peers import chat_body, ratio_figures, stream_chat, two_nodes, whole_model_process

TARGET = 1.6


WORDS = ("the", "keeper", "of", "a", "lighthouse", "found", "an", "old", "boat", "near", "the", "rocks")


def long_prompt(tokens: int, *, number: int) -> str:
    """Some text of about that many tokens: these words are one token each. Texts of other numbers share nothing."""
    return f"{number} " + " ".join(WORDS[index % len(WORDS)] for index in range(tokens))


async def measure(model: Path, mesh: Mesh, options: argparse.Namespace) -> tuple[int, list[tuple[float, float]]]:
    vocabulary = Vocabulary(model)
    rates = []
    with whole_model_process(model, threads=1) as peer:
        # No connection is kept: it would be closed at the other end while the peer runs.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
            for number in range(options.pairs + 1):
                text = long_prompt(options.prompt_tokens, number=number)
                body = chat_body(served_models(mesh.url)[0], tokens=2, prompt=text)
                request = HeadRequest(messages=body["messages"])
                prompt = list(understand(vocabulary, request, context_tokens=1_000_000).prompts[0])
                ours = await stream_chat(http, mesh.url, body)
                theirs = peer.run(prompt, 2)
                if number:  # the first pair warms both sides up
                    rates.append((len(prompt) / ours.first_s, len(prompt) / theirs.first_s))
    return len(prompt), rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cut", type=int, default=15, help="first layer of the second node")
    parser.add_argument("--chunk-tokens", type=int, default=128)
    parser.add_argument("--exact", choices=["auto", "off"], default="auto", help="of our nodes")
    options = parser.parse_args()
    model = resolve_model(options.model)
    chunk = ["--chunk-tokens", str(options.chunk_tokens), "--exact", options.exact]
    with two_nodes(model, cut=options.cut, options=chunk) as mesh:
        prompt_tokens, rates = asyncio.run(measure(model, mesh, options))
    figures = {
        "prompt_tokens": prompt_tokens,
        "chunk_tokens": options.chunk_tokens,
        "exact": options.exact,
        **ratio_figures(rates),
        "target": TARGET,
    }
    print(json.dumps({"benchmark": "long_prompt", **figures}))


if __name__ == "__main__":
    main()
