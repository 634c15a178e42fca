"""One stream and many over two one-thread nodes, against llama.cpp's own split of the same model over RPC.

The peer is llama-server with one thread and half of the layers on an RPC worker with one thread: the same kernels,
the same two cores, the same cut. For one stream the two differ in what a step costs beside the computing only; for many
the peer's halves work in turn and ours at the same time, on half batches. Both sides run in turn, round by round.

    uv run python benchmarks/rpc_split.py [--rounds 3] [--streams 8] [--tokens 64]
"""

import argparse
import asyncio
import json

import aiohttp

from many_streams import CONTEXT_TOKENS, options_parser, run_round
from meshnet_cli.tracker_api import served_models
from meshnet_node.model_source import resolve_model
from peers import ratio_figures, two_nodes
from rpc_peer import rpc_split_server

TARGETS = {"one": 1.3, "many": 2.0}


async def measure(url: str, peer_url: str, options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Tokens per second, ours and theirs, of one stream and of many."""
    model = served_models(url)[0]
    pairs: dict[str, list[tuple[float, float]]] = {"one": [], "many": []}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:
        for number in range(options.rounds + 1):
            for name, streams in (("one", 1), ("many", options.streams)):
                first = number * options.streams
                ours = await run_round(http, url, model, streams, options.tokens, first)
                theirs = await run_round(http, peer_url, model, streams, options.tokens, first)
                if number:  # the first round warms both sides up
                    pairs[name].append((ours, theirs))
    return pairs


def main() -> None:
    options = options_parser(__doc__, rounds=3, tokens=64).parse_args()
    path = resolve_model(options.model)
    room = ["--slots", str(options.streams), "--context-tokens", str(CONTEXT_TOKENS)]
    with (
        rpc_split_server(
            path, worker_layers=30 - options.cut, slots=options.streams, context_tokens=CONTEXT_TOKENS
        ) as peer_url,
        two_nodes(path, cut=options.cut, options=room) as mesh,
    ):
        pairs = asyncio.run(measure(mesh.url, peer_url, options))
    for name, figures in pairs.items():
        line = {
            "benchmark": "rpc_split",
            "streams": 1 if name == "one" else options.streams,
            **ratio_figures(figures),
            "target": TARGETS[name],
        }
        print(json.dumps(line))


if __name__ == "__main__":
    main()
