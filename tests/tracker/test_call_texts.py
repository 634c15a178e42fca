"""Texts of calls: kept only where the owner wants it, in memory, and never much of one call."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from meshnet_protocol.messages import Choice, Delta, FunctionDelta, HeadRequest, ToolCallDelta
from meshnet_tracker.call_texts import ANSWER_CHARS_MAX, CALLS_MAX, PROMPT_CHARS_MAX, CallTexts
from meshnet_tracker.testing import TEN_PIECES, running_head, running_tracker

ASKED = HeadRequest(messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}])


def says(index: int = 0, **delta: Any) -> list[Choice]:
    return [Choice(index=index, delta=Delta(**delta))]


def test_what_was_asked_and_answered_is_shown_answer_by_answer() -> None:
    texts = CallTexts()
    texts.begin("r", ASKED)
    called = ToolCallDelta(index=0, id="c", function=FunctionDelta(name="look", arguments='{"at": 1}'))
    for added in (
        says(1, content="Also"),
        says(0, reasoning_content="Hm. "),
        says(0, content="Be"),
        says(0, reasoning_content="Yes."),
        says(0, content="cause"),
        says(1, tool_calls=[called]),
    ):
        texts.add("r", added)

    assert texts.text("r") == {
        "prompt": [{"role": "system", "text": "Be brief."}, {"role": "user", "text": "Why?"}],
        "is_prompt_cut": False,
        "answers": [
            {"reasoning": "Hm. Yes.", "content": "Because"},
            {"content": "Also", "tool_calls": 'look({"at": 1})'},
        ],
        "is_answer_cut": False,
    }


def test_of_a_long_call_the_end_of_the_prompt_and_the_beginning_of_the_answer_are_kept() -> None:
    texts = CallTexts()
    long = "x" * PROMPT_CHARS_MAX
    texts.begin("r", HeadRequest(messages=[{"role": "user", "content": long}, {"role": "user", "content": "the end"}]))
    for _ in range(3):
        texts.add("r", says(content="y" * (ANSWER_CHARS_MAX // 2 + 1)))
    kept = texts.text("r")

    assert kept is not None
    assert sum(len(part["text"]) for part in kept["prompt"]) == PROMPT_CHARS_MAX
    assert kept["prompt"][-1]["text"] == "the end"
    assert len(kept["answers"][0]["content"]) == ANSWER_CHARS_MAX
    assert (kept["is_prompt_cut"], kept["is_answer_cut"]) == (True, True)


def test_a_prompt_of_countless_empty_messages_is_cut_too() -> None:
    texts = CallTexts()
    texts.begin("r", HeadRequest(messages=[{"role": "user", "content": ""}] * (3 * PROMPT_CHARS_MAX)))
    kept = texts.text("r")
    assert kept is not None
    assert (len(kept["prompt"]), kept["is_prompt_cut"]) == (PROMPT_CHARS_MAX, True)


def test_only_the_latest_calls_are_kept_and_what_runs_on_is_not_missed() -> None:
    texts = CallTexts()
    for number in range(CALLS_MAX + 1):
        texts.begin(f"r{number}", HeadRequest(prompts=["p", [1, 2, 3]]))
    texts.add("r0", says(content="late"))
    assert texts.text("r0") is None
    newest = texts.text(f"r{CALLS_MAX}")
    assert newest is not None
    assert [part["text"] for part in newest["prompt"]] == ["p", "(3 token ids)"]


def kept_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("show_texts", [True, False])
async def test_texts_are_shown_if_wanted_and_are_never_logged_or_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], show_texts: bool
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a secret question"}]}
    settings: dict[str, Any] = {"database": f"sqlite:///{tmp_path}/tracker.db", "show_texts": show_texts}
    async with (
        running_head() as head,
        running_tracker(**settings) as tracker,
        aiohttp.ClientSession(tracker.url) as http,
    ):
        tracker.register("a", "0-39", url=head.url)
        async with http.post("/v1/chat/completions", json=body) as response:
            request_id = response.headers["x-request-id"]
            await response.read()
        async with http.get(f"/v1/calls/{request_id}/text") as response:
            status, shown = response.status, await response.json()
        others = [
            await (await http.get(path)).text() for path in ("/v1/calls", f"/v1/calls/{request_id}", "/v1/events")
        ]
        facts = await (await http.get("/v1/dashboard")).json()

    assert facts == {"has_login": False, "shows_texts": show_texts}
    if show_texts:
        assert shown["prompt"] == [{"role": "user", "text": "a secret question"}]
        assert shown["answers"] == [{"content": "".join(TEN_PIECES)}]
    else:
        assert (status, shown["error"]["code"]) == (404, "texts_not_kept")
    captured = capsys.readouterr()
    written = [*others, captured.out, captured.err]
    written += [path.read_bytes().decode("latin-1") for path in kept_files(tmp_path)]
    assert any(request_id in text for text in written)
    assert not any(word in text for text in written for word in ("secret", TEN_PIECES[0].strip()))


async def test_texts_are_the_owners_to_see_and_no_clients() -> None:
    keys: dict[str, Any] = {"api_keys": ("sk-client-0123",), "admin_keys": ("sk-owner-0123",), "show_texts": True}
    async with running_tracker(**keys) as tracker, aiohttp.ClientSession(tracker.url) as http:
        async with http.get("/v1/calls/x/text", headers={"authorization": "Bearer sk-client-0123"}) as response:
            assert response.status == 403
        async with http.get("/v1/calls/x/text", headers={"authorization": "Bearer sk-owner-0123"}) as response:
            assert json.loads(await response.text())["error"]["code"] == "call_not_found"
