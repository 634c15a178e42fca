"""One stream over two one-thread nodes, against llama.cpp running the whole model with one thread.

Two nodes work in turn for one stream, so the ceiling is the peer's own speed: 1.0 less what the link, the
tracker and the stop in the middle of the graph cost. Both sides run in turn, pair by pair, on the same machine, with
the same prompt and number of tokens; figures are end to end, the prompt's time included.

The nodes bring their weights into huge pages (``huge_pages.py``). The peer maps a copy of the model's file, fresh as a
download leaves it, because a node may have brought the original into huge pages too: that is worth up to 15 % of the
peer's speed. ``peer_huge_mb`` says how much of the copy lay in huge pages; ``--peer-file`` gives it another file.

    uv run python benchmarks/one_stream.py [--pairs 7] [--tokens 128]
"""

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
from pathlib import Path

import aiohttp

from meshnet_cli.demo.processes import Mesh
from meshnet_cli.tracker_api import served_models
from meshnet_node.engine.vocabulary import Vocabulary
from meshnet_node.model_source import resolve_model
from meshnet_node.prompt import understand
from meshnet_protocol.messages import HeadRequest
from peers import Stream, chat_body, stream_chat, two_nodes, whole_model_process


async def measure(
    model: Path, peer_file: Path, mesh: Mesh, pairs: int, tokens: int
) -> tuple[list[tuple[Stream, Stream]], float]:
    body = chat_body(served_models(mesh.url)[0], tokens=tokens)
    work = understand(Vocabulary(model), HeadRequest(messages=body["messages"]), context_tokens=4096)
    prompt = list(work.prompts[0])
    results = []
    with whole_model_process(peer_file, threads=1) as peer:
        async with aiohttp.ClientSession() as http:
            for number in range(pairs + 1):
                ours = await stream_chat(http, mesh.url, body)
                theirs = peer.run(prompt, tokens)
                if number:  # the first pair warms both sides up
                    results.append((ours, theirs))
    return results, peer.huge_mb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cut", type=int, default=17, help="first layer of the second node")
    parser.add_argument("--peer-file", type=Path, help="the same model for the peer; a fresh copy if left out")
    options = parser.parse_args()
    model = resolve_model(options.model)
    with (
        tempfile.TemporaryDirectory(dir=Path.home()) as folder,  # not on a RAM disk, which has pages of its own
        two_nodes(model, cut=options.cut) as mesh,
    ):
        peer_file = options.peer_file or Path(shutil.copyfile(model, Path(folder) / model.name))
        results, peer_huge_mb = asyncio.run(measure(model, peer_file, mesh, options.pairs, options.tokens))
    report(results, peer_huge_mb)


def report(results: list[tuple[Stream, Stream]], peer_huge_mb: float) -> None:
    end_to_end = [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in results]
    decode = [ours.decode_tokens_per_s / theirs.decode_tokens_per_s for ours, theirs in results]
    print(
        json.dumps(
            {
                "benchmark": "one_stream",
                "pairs": len(results),
                "tokens_per_s": round(statistics.median(ours.tokens_per_s for ours, _ in results), 2),
                "peer_tokens_per_s": round(statistics.median(theirs.tokens_per_s for _, theirs in results), 2),
                "ratio": round(statistics.median(end_to_end), 3),
                "ratio_min": round(min(end_to_end), 3),
                "ratio_max": round(max(end_to_end), 3),
                "decode_ratio": round(statistics.median(decode), 3),
                "peer_huge_mb": peer_huge_mb,
                "target": 0.95,
            }
        )
    )


if __name__ == "__main__":
    main()
