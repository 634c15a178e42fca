"""Turns, room for the modest, and a law: who enters is let in, refused or leaves, exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet_tracker.fair_queue import FairQueue


def test_clients_take_turns_each_in_its_own_order() -> None:
    queue: FairQueue[str] = FairQueue(count_max=10)
    for request in ("a1", "a2", "a3", "b1", "c1", "b2"):
        assert queue.enter(request[0], request) is None

    assert [queue.take() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


def test_a_full_queue_makes_room_for_who_has_less_at_the_cost_of_who_has_most() -> None:
    queue: FairQueue[str] = FairQueue(count_max=4)
    for number in range(4):
        queue.enter("flood", f"f{number}")

    assert queue.enter("flood", "f4") == "f4"
    assert queue.enter("modest", "m0") == "f3"
    assert queue.enter("modest", "m1") == "f2"
    assert queue.enter("modest", "m2") == "m2", "two and two: nobody has most"
    assert len(queue) == 4


def test_who_had_its_turn_in_vain_is_the_next() -> None:
    queue: FairQueue[str] = FairQueue(count_max=4)
    queue.enter("a", "a1")
    queue.enter("b", "b1")
    assert queue.take() == "a1"
    queue.enter("a", "a1", is_again=True)

    assert queue.take() == "a1"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "take", "leave", "again"])), max_size=60))
def test_every_request_is_let_in_or_refused_or_leaves_exactly_once(steps: list[tuple[str, str]]) -> None:
    queue: FairQueue[int] = FairQueue(count_max=5)
    waiting: dict[int, str] = {}
    for number, (client, step) in enumerate(steps):
        if step in ("enter", "again"):
            refused = queue.enter(client, number, is_again=step == "again")
            waiting[number] = client
            if refused is not None:
                del waiting[refused]
        elif step == "take":
            assert (taken := queue.take()) is None or waiting.pop(taken)
        else:
            mine = [request for request, owner in waiting.items() if owner == client]
            if mine:
                queue.leave(client, mine[-1])
                del waiting[mine[-1]]
        assert len(queue) == len(waiting) <= 5
        assert (queue.first() is None) == (not waiting)
