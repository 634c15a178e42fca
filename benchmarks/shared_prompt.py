"""Users who share a system prompt, over two one-thread nodes, against llama.cpp's own server and its prompt cache.

One user is answered; then all others come at once, each with the same system prompt and a question of their own. Both
sides keep what they have computed (their default). A slot of ours that is free or in use gives its beginning to others;
the peer's slots keep theirs to themselves, so whoever finds the one that knows the prompt taken computes all of it.
Both sides run in turn, round by round, with a new system prompt in each; the figure is the mean time until a user's
first token, the peer's over ours: above 1 we are faster.

    uv run python benchmarks/shared_prompt.py [--rounds 5] [--streams 8] [--prompt-tokens 300]
"""

import argparse
import asyncio
import json
import statistics
from typing import Any

import aiohttp

from long_prompt import long_prompt
from many_streams import both_sides, options_parser
from meshnet_cli.tracker_api import served_models
from peers import chat_body, stream_chat

QUESTIONS = ("Who lives there?", "What is the boat called?", "How old is the keeper?", "What is the weather like?")


def body(model: str, system: str, user: int, tokens: int) -> dict[str, Any]:
    asked = chat_body(model, tokens=tokens, prompt=f"{user}: {QUESTIONS[user % len(QUESTIONS)]}")
    messages = [{"role": "system", "content": system}, *asked["messages"]]
    return asked | {"messages": messages, "cache_prompt": True}


async def first_token_s(http: aiohttp.ClientSession, url: str, model: str, system: str, options: Any) -> float:
    """Mean over all users but the first."""
    await stream_chat(http, url, body(model, system, 0, options.tokens))
    users = range(1, options.streams)
    done = await asyncio.gather(*(stream_chat(http, url, body(model, system, user, options.tokens)) for user in users))
    return statistics.mean(stream.first_s for stream in done)


async def measure(url: str, peer_url: str, options: argparse.Namespace) -> list[tuple[float, float]]:
    model = served_models(url)[0]
    pairs = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:
        for number in range(options.rounds + 1):
            system = long_prompt(options.prompt_tokens, number=number)
            ours = await first_token_s(http, url, model, system, options)
            theirs = await first_token_s(http, peer_url, model, system, options)
            if number:  # the first round warms both sides up
                pairs.append((ours, theirs))
    return pairs


def main() -> None:
    parser = options_parser(__doc__, rounds=5, tokens=16)
    parser.add_argument("--prompt-tokens", type=int, default=300)
    options = parser.parse_args()
    with both_sides(options) as (mesh, peer_url):
        pairs = asyncio.run(measure(mesh.url, peer_url, options))
    ratios = [theirs / ours for ours, theirs in pairs]
    figures = {
        "benchmark": "shared_prompt",
        "streams": options.streams,
        "prompt_tokens": options.prompt_tokens,
        "first_token_s": round(statistics.median(ours for ours, _ in pairs), 3),
        "peer_first_token_s": round(statistics.median(theirs for _, theirs in pairs), 3),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_min": round(min(ratios), 2),
        "ratio_max": round(max(ratios), 2),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
