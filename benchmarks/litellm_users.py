"""LiteLLM's latency-based router in front of pinned routes of a tracker, and the benchmark's users in front of it.

Runs in an environment of its own that has LiteLLM and nothing of meshnet:

    uv run --no-project --with litellm python benchmarks/litellm_users.py < settings.json

Settings: ``url``, ``model``, ``routes`` (lists of node ids), ``users``, ``seconds``. Prints ``ready`` and, when told
to go by a second line, the chats as one JSON line.
"""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is looked up on the internet

import litellm  # type: ignore[import-not-found,unused-ignore]

from live_users import as_rows, run_users


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    litellm.suppress_debug_info = True
    router = litellm.Router(
        model_list=[
            {
                "model_name": "mesh",
                "litellm_params": {
                    "model": f"openai/{settings['model']}",
                    "api_base": f"{settings['url']}/v1",
                    "api_key": "none",
                    "extra_body": {"route": route, "ignore_eos": True, "cache_prompt": False},
                },
            }
            for route in settings["routes"]
        ],
        routing_strategy="latency-based-routing",
        num_retries=2,
    )

    async def ask(prompt: str, tokens: int) -> int:
        answer = await router.acompletion(
            model="mesh",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=tokens,
            temperature=0,
        )
        return int(answer.usage.completion_tokens)

    print("ready", flush=True)
    sys.stdin.readline()
    asked = asyncio.run(run_users(ask, users=settings["users"], seconds=settings["seconds"]))
    print(json.dumps(as_rows(asked)), flush=True)


if __name__ == "__main__":
    main()
