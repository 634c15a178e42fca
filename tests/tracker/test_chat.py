"""A chat's record: what it counts, and when it says something about its route."""

from random import Random

import pytest

from meshnet_protocol.messages import Choice, Delta, HeadReport, Usage
from meshnet_tracker.chat import Chat
from meshnet_tracker.errors import AttemptFailedError
from meshnet_tracker.fleet import Fleet, NodeRegistered
from meshnet_tracker.head_events import HeadEvent
from meshnet_tracker.openai_schema import parse_chat
from meshnet_tracker.outcomes import Outcome
from meshnet_tracker.router import Router
from meshnet_tracker.routing_stats import RouteStatsStore, RoutingConfig
from meshnet_tracker.testing import make_registration

BODY = b'{"messages": [{"role": "user", "content": "hi"}]}'


def begun_chat() -> Chat:
    """Received at 0 s, dispatched to a whole-model head at 1 s."""
    fleet, config = Fleet(), RoutingConfig()
    fleet.handle(NodeRegistered(make_registration("whole", "0-39")), now=0.0)
    (model,) = fleet.models()
    router = Router(fleet=fleet, stats=RouteStatsStore(config), config=config, rng=Random(1))
    chat = Chat(request_id="r", received_at=0.0)
    chat.understand(parse_chat(BODY, seed_rng=Random(1)), model)
    chat.begin_attempt(router.choose(model, now=1.0), now=1.0)
    return chat


def text_event(text: str) -> HeadEvent:
    return HeadEvent(choices=[Choice(index=0, delta=Delta(content=text))], meshnet=HeadReport(token_ids=(1, 2)))


def test_speed_is_counted_from_dispatch_and_the_first_text_from_arrival() -> None:
    chat = begun_chat()
    assert [choice.delta.content for choice in chat.take(text_event("a"), now=2.0)[0]] == ["a"]
    assert [choice.delta.content for choice in chat.take(text_event("b"), now=3.0)[0]] == ["b"]
    chat.take(HeadEvent(usage=Usage(prompt_tokens=3, completion_tokens=4, total_tokens=7)), now=5.0)
    chat.complete(now=5.0)
    chat.end_attempt()

    summary = chat.summary(now=6.0)

    assert (summary["tps"], summary["ttft_s"], summary["seconds"]) == (4 / 4.0, 2.0, 6.0)
    assert summary["hops"][0]["work_units"] == 40 * 7


def test_tokens_seen_are_counted_where_a_head_gives_no_usage() -> None:
    chat = begun_chat()
    chat.take(text_event("a"), now=2.0)
    assert chat.usage.completion_tokens == 2


def test_a_head_that_tells_no_ids_has_speed_and_work_units_by_its_own_count_and_by_pieces_until_then() -> None:
    """Such as one that stands for another server."""
    chat = begun_chat()
    for piece in ("a", "b"):
        chat.take(HeadEvent(choices=[Choice(index=0, delta=Delta(content=piece))]), now=2.0)
    while_running = chat.usage.completion_tokens
    chat.take(HeadEvent(usage=Usage(prompt_tokens=3, completion_tokens=8, total_tokens=11)), now=5.0)
    chat.complete(now=5.0)
    chat.end_attempt()
    summary = chat.summary(now=6.0)

    assert while_running == 2
    assert (summary["tps"], summary["completion_tokens"]) == (8 / 4.0, 8)
    assert [run["completion_tokens"] for run in summary["runs"]] == [8]
    assert summary["hops"][0]["work_units"] == 40 * 11


def test_another_attempt_goes_on_from_what_was_drawn_and_each_token_is_one_runs() -> None:
    chat = begun_chat()
    chat.take(HeadEvent(meshnet=HeadReport(prompt_tokens=3)), now=2.0)
    chat.take(text_event("a"), now=2.0)
    chat.end_attempt(AttemptFailedError("broke"))
    assert chat.decision is not None
    (so_far,) = chat.begin_attempt(chat.decision, now=3.0)
    chat.take(HeadEvent(meshnet=HeadReport(prompt_tokens=3, resumed_tokens=2)), now=4.0)
    chat.take(text_event("b"), now=4.0)
    chat.complete(now=5.0)
    chat.end_attempt()
    runs = chat.summary(now=6.0)["runs"]

    assert (so_far.token_ids, so_far.is_finished) == ((1, 2), False)
    assert (chat.attempts, chat.usage.completion_tokens, chat.first_text_at) == (2, 4, 2.0)
    assert not chat.tells_of_its_route
    assert [(run["outcome"], run["prompt_tokens"], run["completion_tokens"]) for run in runs] == [
        ("node_fault", 3, 2),
        ("completed", 0, 2),
    ]


@pytest.mark.parametrize(("client_wait_s", "tells"), [(0.0, True), (0.2, True), (1.0, False)])
def test_a_slow_reader_says_nothing_about_the_route(client_wait_s: float, tells: bool) -> None:
    chat = begun_chat()
    chat.take(text_event("a"), now=2.0)
    chat.client_wait_s = client_wait_s
    chat.complete(now=5.0)

    assert chat.outcome is Outcome.COMPLETED
    assert chat.tells_of_its_route is tells


def test_an_unknown_finish_reason_becomes_one_that_clients_know() -> None:
    chat = begun_chat()
    chat.take(text_event("a"), now=2.0)
    (choice,), _ = chat.take(HeadEvent(choices=[Choice(index=0, delta=Delta(), finish_reason="eos")]), now=2.0)
    assert choice.finish_reason == "stop"
    assert chat.summary(now=3.0)["finish_reason"] == "stop"


NOTHING = [Choice(index=0, delta=Delta(), finish_reason="stop")]


def test_an_answer_that_ends_without_a_token_is_degenerate() -> None:
    chat = begun_chat()
    chat.take(HeadEvent(meshnet=HeadReport(prompt_tokens=3)), now=2.0)
    with pytest.raises(AttemptFailedError) as failed:
        chat.take(HeadEvent(choices=NOTHING), now=2.0)

    assert failed.value.outcome is Outcome.DEGENERATE
    assert not chat.tells_of_its_route


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_head_that_reports_no_tokens_is_believed_its_count_at_the_end(tokens: int) -> None:
    """So are those that stand for another server."""
    chat = begun_chat()
    progress = chat.understood[2]
    chat.take(HeadEvent(choices=NOTHING), now=2.0)
    chat.take(HeadEvent(usage=Usage(prompt_tokens=3, completion_tokens=tokens, total_tokens=3 + tokens)), now=2.0)
    if tokens:
        progress.check_end()
    else:
        with pytest.raises(AttemptFailedError):
            progress.check_end()

    assert progress.is_complete == (tokens > 0)
