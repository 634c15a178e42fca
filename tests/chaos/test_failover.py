"""One fault at a time, aimed at one hop of a running chat: the client reads on as if nothing had been."""

from collections.abc import Callable, Iterator

import pytest

from .chats import Seen, ask
from .storm import TOKEN_TIMEOUT_S, Storm, storm, wait_until

WORDS_BEFORE = 6
CHATS_MAX = 20


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    with storm(tmp_path_factory.mktemp("failover")) as running:
        yield running


def ask_and_break(mesh: Storm, way: str, hop: int, strike: Callable[[str], None]) -> tuple[Seen, str]:
    """A streamed chat on the route of three hops; its ``hop`` is struck after a few words."""
    for _ in range(CHATS_MAX):
        struck: list[str] = []
        words = 0

        def on_word(struck: list[str] = struck) -> None:
            nonlocal words
            words += 1
            newest = mesh.events("proxy route selected")[-1]
            hops = [hop["node_id"].split(".")[0] for hop in newest["hops"]]
            if words == WORDS_BEFORE and len(hops) == 3:
                struck.append(hops[hop])
                strike(hops[hop])

        seen = ask(mesh.url, way, is_stream=True, on_word=on_word)
        if struck:
            return seen, struck[0]
    raise AssertionError("no chat took the route of three hops")


@pytest.mark.parametrize("hop", [0, 1, 2], ids=["head", "middle", "tail"])
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_hop_is_lost_and_the_text_is_the_very_one(mesh: Storm, hop: int, fault: str) -> None:
    way = "seeded with penalties"
    undisturbed = ask(mesh.url, way, is_stream=True)

    seen, victim = ask_and_break(mesh, way, hop, mesh.kill if fault == "killed" else mesh.freeze)

    if fault == "killed":
        mesh.start(victim)
    else:
        mesh.thaw(victim)
    assert seen.errors == []
    assert seen.words == undisturbed.words
    (finished,) = [e for e in mesh.events("chat finished") if e["request_id"] == seen.request_id]
    assert finished["outcome"] == "completed"
    assert finished["attempts"] > 1
    assert sum(run["completion_tokens"] for run in finished["runs"]) == finished["completion_tokens"]
    assert seen.pause_s_max < TOKEN_TIMEOUT_S + 3
    mesh.wait(victim)
    wait_until(lambda: mesh.sessions() == 0 == mesh.in_flight())
