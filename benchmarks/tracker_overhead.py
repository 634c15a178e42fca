"""What the tracker adds to a chat, against calling the same head directly: keys, the choice, a signed ticket, relaying.

Both sides run in turn, pair by pair; the figures are medians of the pairs' differences. The floor is one
more HTTP exchange on loopback, well below a millisecond.

    uv run python benchmarks/tracker_overhead.py [--pairs 60] [--tokens 8]
"""

import argparse
import asyncio
import json
import os
import secrets
import statistics
import tempfile
from pathlib import Path

import aiohttp

from meshnet_cli.demo.processes import Mesh, free_port
from meshnet_cli.tracker_api import KEY_VARIABLE, get_json, served_models
from peers import Stream, chat_body, stream_chat


async def measure(mesh: Mesh, key: str, pairs: int, tokens: int) -> list[tuple[Stream, Stream]]:
    body = chat_body(served_models(mesh.url)[0], tokens=tokens, prompt="Hi")
    head_url = get_json(mesh.url, "/v1/nodes")["nodes"][0]["url"]
    results = []
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as http:
        for number in range(pairs + 3):
            through = await stream_chat(http, mesh.url, body)
            direct = await stream_chat(http, head_url, body)
            if number >= 3:  # the first pairs warm both sides up
                results.append((through, direct))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=8)
    options = parser.parse_args()
    client_key, owner_key = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    os.environ[KEY_VARIABLE] = owner_key
    with tempfile.TemporaryDirectory() as folder, Mesh(Path(folder), free_port(0), "smollm2") as mesh:
        mesh.start_tracker(options=["--api-key", client_key, "--admin-key", owner_key])
        mesh.start_node("whole", "0-29", layer_delay_ms=0)
        mesh.wait_node("whole", entry_layers=[0])
        results = asyncio.run(measure(mesh, client_key, options.pairs, options.tokens))
    first = [1000 * (through.first_s - direct.first_s) for through, direct in results]
    total = [1000 * (through.total_s - direct.total_s) for through, direct in results]
    print(
        json.dumps(
            {
                "benchmark": "tracker_overhead",
                "pairs": len(results),
                "first_token_ms": round(statistics.median(first), 2),
                "total_ms": round(statistics.median(total), 2),
                "direct_first_token_ms": round(1000 * statistics.median(d.first_s for _, d in results), 1),
                "direct_total_ms": round(1000 * statistics.median(d.total_s for _, d in results), 1),
                "target_ms": 3.0,
            }
        )
    )


if __name__ == "__main__":
    main()
