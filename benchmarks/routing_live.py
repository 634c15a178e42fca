"""Three routers over the same real nodes: the default policy, the adaptive one, and LiteLLM's latency routing.

Three heads and three tails hold one half of SmolLM2 each, so there are nine routes. The nodes' speeds are pretended
by a delay per layer, so long that all computing together stays below a quarter of two cores and no node slows another
down; one head is slow. Users ask one chat after the other, the same ones for every router. Half-way through a router's
turn the fastest head becomes five times slower. Every router begins with a tracker that knows nothing; LiteLLM's
deployments are the nine routes, pinned at the tracker. LiteLLM is fetched into an environment of its own.

The ceiling is the fastest route's own speed with nobody else on it; ``ideal_tps`` is worked out from the delays alone.
The routers take turns, in another order each time (``--first``). Several rounds make a comparison, and each can be
run by itself, for the machine has to be alone: it keeps its turns in a file, and a last call joins them.

    uv run python benchmarks/routing_live.py --first 0 --keep round0.json
    uv run python benchmarks/routing_live.py --first 1 --keep round1.json
    uv run python benchmarks/routing_live.py --join round0.json round1.json
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from live_users import Asked, as_rows, run_users
from meshnet_cli.demo.processes import Child, Mesh, free_port
from meshnet_cli.tracker_api import get_json, served_models

HERE = Path(__file__).parent
LAYERS = {"head": "0-14", "tail": "15-29"}
LAYER_COUNT_EACH = 15
NODE_DELAY_MS = {"head0": 80, "head1": 110, "head2": 320, "tail0": 80, "tail1": 110, "tail2": 160}
"""Per token, over all layers of the node."""
SLOWER = 5.0
SLOWED = "head0"
ROUTERS = ("proportional", "adaptive", "litellm")
SETTLED_SHARE = 0.4
"""Of each half of a turn: what comes before it is learning."""
CORES = 2


@dataclass(frozen=True, slots=True)
class Turn:
    router: str
    asked: list[Asked]
    seconds: float
    users: int
    cores_used: float


def run_turn(mesh: Mesh, router: str, *, users: int, seconds: float) -> Turn:
    policy = router if router != "litellm" else "proportional"
    tracker = mesh.spawn(
        "tracker", ["tracker", "--port", mesh.url.rsplit(":", 1)[1], "--database", "none", "--route-policy", policy]
    )
    try:
        for name in NODE_DELAY_MS:
            mesh.wait_node(name, entry_layers=[0 if name.startswith("head") else LAYER_COUNT_EACH])
        nodes = [child for child in mesh.children if child.name in NODE_DELAY_MS]
        slowed = next(child for child in nodes if child.name == SLOWED)
        run = _run_litellm if router == "litellm" else _run_tracker
        before_s = _cpu_s(nodes)
        started = time.monotonic()
        asked = run(mesh, slowed, users=users, seconds=seconds)
        cores = (_cpu_s(nodes) - before_s) / (time.monotonic() - started)
        slowed.process.send_signal(signal.SIGUSR2)
    finally:
        tracker.stop()
        mesh.children.remove(tracker)
    return Turn(router, asked, seconds, users, cores)


def _run_tracker(mesh: Mesh, slowed: Child, *, users: int, seconds: float) -> list[Asked]:
    model = served_models(mesh.url)[0]

    async def run() -> list[Asked]:
        async with aiohttp.ClientSession() as http:

            async def ask(prompt: str, tokens: int) -> int:
                body = _body(model, prompt, tokens)
                async with http.post(f"{mesh.url}/v1/chat/completions", json=body) as response:
                    answer = await response.json()
                    response.raise_for_status()
                    return int(answer["usage"]["completion_tokens"])

            return await run_users(ask, users=users, seconds=seconds)

    with _slow_down(slowed, after_s=seconds / 2):
        return asyncio.run(run())


def _run_litellm(mesh: Mesh, slowed: Child, *, users: int, seconds: float) -> list[Asked]:
    command = ["uv", "run", "--quiet", "--no-project", "--with", "litellm", "python", str(HERE / "litellm_users.py")]
    settings = {
        "url": mesh.url,
        "model": served_models(mesh.url)[0],
        "routes": _routes(mesh),
        "users": users,
        "seconds": seconds,
    }
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"LiteLLM did not start: {' '.join(command)}")
        process.stdin.write("go\n")
        process.stdin.flush()
        with _slow_down(slowed, after_s=seconds / 2):
            rows = json.loads(process.stdout.readline())
    return [Asked(**row) for row in rows]


class _slow_down:  # noqa: N801 - reads as what it does
    """Makes a node slow after a while, unless the context ends before."""

    def __init__(self, node: Child, *, after_s: float) -> None:
        self._timer = threading.Timer(after_s, node.process.send_signal, (signal.SIGUSR1,))

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _routes(mesh: Mesh) -> list[list[str]]:
    ids = {node["node_id"].split(".")[0]: node["node_id"] for node in get_json(mesh.url, "/v1/nodes")["nodes"]}
    heads, tails = ([ids[name] for name in NODE_DELAY_MS if name.startswith(kind)] for kind in LAYERS)
    return [[head, tail] for head in heads for tail in tails]


def _body(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }


def _cpu_s(children: Sequence[Child]) -> float:
    """User and system time of the processes so far."""
    ticks = 0
    for child in children:
        fields = Path(f"/proc/{child.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def start_nodes(mesh: Mesh) -> None:
    for name, delay_ms in NODE_DELAY_MS.items():
        arguments = ["node", "--model", "smollm2", "--layers", LAYERS[name[:4]], "--instance", name, "--port", "0"]
        arguments += ["--tracker", mesh.url, "--threads", "1", "--slots", "2", "--exact", "off"]
        arguments += ["--context-tokens", "512", "--wallet", str(mesh.folder / "wallet.pem")]
        arguments += ["--layer-delay-ms", str(delay_ms / LAYER_COUNT_EACH)]
        mesh.spawn(name, arguments, program=(str(HERE / "slowing_node.py"),))


def figures_of(turns: Sequence[Turn]) -> dict[str, Any]:
    """Means over chats of their own tokens/s; a chat that failed counts as 0. Ranges are of the turns' means."""
    halves: dict[str, list[float]] = {"before": [], "after": []}
    overall: list[float] = []
    for turn in turns:
        half_s = turn.seconds / 2
        for one in turn.asked:
            tps = one.tokens / one.seconds
            overall.append(tps)
            is_settled = (one.at_s % half_s) >= SETTLED_SHARE * half_s
            if is_settled:
                halves["before" if one.at_s < half_s else "after"].append(tps)
    return {
        "chats": len(overall),
        "failed": sum(one.tokens == 0 for turn in turns for one in turn.asked),
        "tps": round(statistics.fmean(overall), 3),
        "tps_of_turns": sorted(round(statistics.fmean(one.tokens / one.seconds for one in t.asked), 2) for t in turns),
        "tps_settled": round(statistics.fmean(halves["before"]), 3),
        "tps_settled_after_slow_down": round(statistics.fmean(halves["after"]), 3),
        "cores_used": round(statistics.fmean(turn.cores_used for turn in turns), 3),
    }


def ideal_tps(*, is_slowed: bool) -> float:
    """Of the best route, by its delays alone."""
    delay = {name: ms * (SLOWER if is_slowed and name == SLOWED else 1.0) for name, ms in NODE_DELAY_MS.items()}
    return 1000 / sum(min(ms for name, ms in delay.items() if name.startswith(kind)) for kind in LAYERS)


def run_round(*, users: int, seconds: float, first: int) -> list[Turn]:
    """Every router once, beginning with the one of that number."""
    order = (*ROUTERS[first:], *ROUTERS[:first])
    with tempfile.TemporaryDirectory() as folder, Mesh(Path(folder), free_port(0), "smollm2") as mesh:
        start_nodes(mesh)
        return [run_turn(mesh, router, users=users, seconds=seconds) for router in order]


def keep(turns: Sequence[Turn], path: Path) -> None:
    path.write_text(json.dumps([{**asdict(turn), "asked": as_rows(turn.asked)} for turn in turns]))


def kept(path: Path) -> list[Turn]:
    return [
        Turn(row["router"], [Asked(**one) for one in row["asked"]], row["seconds"], row["users"], row["cores_used"])
        for row in json.loads(path.read_text())
    ]


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    by_router = {router: [turn for turn in turns if turn.router == router] for router in ROUTERS}
    return {
        "benchmark": "routing_live",
        "users": sorted({turn.users for turn in turns}),
        "seconds": sorted({turn.seconds for turn in turns}),
        "turns_each": len(turns) // len(ROUTERS),
        "ideal_tps": round(ideal_tps(is_slowed=False), 2),
        "ideal_tps_after_slow_down": round(ideal_tps(is_slowed=True), 2),
        "cores_used_max": CORES / 4,
        **{router: figures_of(mine) for router, mine in by_router.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=54.0, help="Of each router's turn.")
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, choices=range(len(ROUTERS)), help="Which router begins.")
    parser.add_argument("--keep", type=Path, help="Write the turns, chat by chat, to this file.")
    parser.add_argument("--join", type=Path, nargs="+", help="Run nothing; the figures of the turns in these files.")
    options = parser.parse_args()
    # Processes are stopped on the way out of the mesh's context, so being told to end has to take that way too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.join:
        turns = [turn for path in options.join for turn in kept(path)]
    else:
        turns = run_round(users=options.users, seconds=options.seconds, first=options.first)
    if options.keep:
        keep(turns, options.keep)
    print(json.dumps(summary(turns)))


if __name__ == "__main__":
    main()
