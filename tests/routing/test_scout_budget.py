"""What scouting may cost: a share of all seconds whatever scouts turn out to take, and nothing is spent by asking."""

from random import Random

import pytest

from meshnet_tracker.policies.scout_budget import (
    CREDIT_DUE_IN_FULL,
    DEBT_IN_REQUESTS_MAX,
    FIRST_CREDIT_IN_REQUESTS,
    FIRST_REQUESTS_SHARE,
    REQUESTS_PER_TRIAL,
    SECOND_LOOK_PERIOD_S,
    SECOND_LOOKS_PER_REQUEST,
    SECOND_LOOKS_SAVED_MAX,
    Expense,
    ScoutBudget,
)

REQUEST_S = 10.0
THERE_FROM_THE_START = 0


def serve(budget: ScoutBudget, requests: int, *, now: float = 0.0) -> None:
    for _ in range(requests):
        budget.decided(now, None, has_looked=False)
        budget.completed(REQUEST_S)


def rich(requests: int = 1000) -> ScoutBudget:
    budget = ScoutBudget()
    serve(budget, requests)
    return budget


def second_look(budget: ScoutBudget, paid_s: float) -> Expense:
    return Expense(budget.second_looks, REQUEST_S, paid_s)


def first_request(budget: ScoutBudget, paid_s: float) -> Expense:
    return Expense(budget.first_requests, REQUEST_S, paid_s)


def test_second_looks_are_a_share_of_the_requests_however_cheap_they_seem() -> None:
    budget = rich()
    looks = 0
    for number in range(1000):
        now = 2000.0 + 2 * SECOND_LOOK_PERIOD_S * number
        is_look = budget.may_look(now)
        looks += is_look
        budget.decided(now, second_look(budget, 0.0) if is_look else None, has_looked=is_look)
        budget.completed(REQUEST_S)
    assert 0 < looks <= 1000 * SECOND_LOOKS_PER_REQUEST + SECOND_LOOKS_SAVED_MAX


def test_a_second_look_waits_for_seconds_to_pay_it_from() -> None:
    budget = ScoutBudget()
    assert not budget.may_look(5.0)
    budget.completed(REQUEST_S)
    assert budget.may_look(5.0)
    budget.decided(5.0, second_look(budget, 1.0), has_looked=True)
    assert not budget.may_look(1e6)


def test_a_look_in_vain_is_not_repeated_at_once() -> None:
    budget = rich()
    budget.decided(2000.0, None, has_looked=True)
    assert not budget.may_look(2000.0 + SECOND_LOOK_PERIOD_S / 2)
    assert budget.may_look(2000.0 + SECOND_LOOK_PERIOD_S)


@pytest.mark.parametrize("surprise", [1.0, 3.0, 20.0])
def test_first_requests_cost_their_share_of_all_seconds_even_if_they_take_longer_than_believed(surprise: float) -> None:
    """A hundred nodes there from the start, of every price."""
    budget, rng = ScoutBudget(), Random(1)
    prices_s = [REQUEST_S * rng.uniform(0.1, 5.0) for _ in range(100)]
    spent_s = dearest_s = 0.0
    for _ in range(5000):
        price_s = min(prices_s, default=1e9)
        expense = None
        if budget.can_pay_first_request(price_s, THERE_FROM_THE_START):
            prices_s.remove(price_s)
            expense = first_request(budget, price_s)
            cost_s = surprise * price_s
            spent_s, dearest_s = spent_s + cost_s, max(dearest_s, cost_s)
        budget.decided(0.0, expense, has_looked=False)
        budget.completed(REQUEST_S)
        if expense is not None:
            expense.settle(REQUEST_S + cost_s, work=1.0)
    assert 0 < spent_s <= 5000 * REQUEST_S * FIRST_REQUESTS_SHARE + FIRST_CREDIT_IN_REQUESTS * REQUEST_S + dearest_s


def test_every_node_that_was_there_at_the_start_can_be_paid_for_in_the_end() -> None:
    budget, price_s = rich(100), 60 * REQUEST_S
    assert not budget.can_pay_first_request(price_s, THERE_FROM_THE_START)
    serve(budget, int(price_s / REQUEST_S / FIRST_REQUESTS_SHARE))
    assert budget.can_pay_first_request(price_s, THERE_FROM_THE_START)


def test_a_node_that_joins_has_some_credit_at_once_more_while_it_waits_and_any_in_the_end() -> None:
    budget = rich(100)
    budget.decided(0.0, first_request(budget, budget.first_requests.seconds), has_looked=False)
    joined_at = budget.requests

    def can_pay(requests: float) -> bool:
        return budget.can_pay_first_request(requests * REQUEST_S, joined_at)

    assert not can_pay(0.1)
    serve(budget, CREDIT_DUE_IN_FULL // 2)
    assert can_pay(0.1)
    assert not can_pay(50.0)
    serve(budget, CREDIT_DUE_IN_FULL - CREDIT_DUE_IN_FULL // 2)
    assert can_pay(50.0)


def test_who_has_been_expensive_is_paid_off_before_the_next_gets_credit_at_any_price() -> None:
    budget = rich(100)
    joined_at = budget.requests
    serve(budget, CREDIT_DUE_IN_FULL)
    budget.decided(0.0, first_request(budget, 50 * REQUEST_S), has_looked=False)
    assert not budget.can_pay_first_request(REQUEST_S, joined_at)

    serve(budget, int((50 - DEBT_IN_REQUESTS_MAX) / FIRST_REQUESTS_SHARE))
    assert budget.can_pay_first_request(REQUEST_S, joined_at)


def test_what_a_scout_really_cost_is_settled_when_it_is_back() -> None:
    budget = rich()
    before_s = budget.first_requests.seconds
    expense = first_request(budget, 2.0)
    budget.decided(0.0, expense, has_looked=False)
    assert budget.first_requests.seconds == pytest.approx(before_s - 2.0)

    expense.settle(3 * REQUEST_S, work=2.0)
    assert budget.first_requests.seconds == pytest.approx(before_s - REQUEST_S)


def test_a_scout_whose_client_left_gives_the_rest_back_for_the_next_one() -> None:
    budget = rich()
    before_s = budget.first_requests.seconds
    expense = first_request(budget, REQUEST_S)
    budget.decided(0.0, expense, has_looked=False)
    expense.give_up(REQUEST_S / 2)
    assert budget.first_requests.seconds == pytest.approx(before_s - REQUEST_S / 4)


def test_a_trial_is_one_request_in_so_many_and_waits_until_debts_are_paid() -> None:
    budget = rich(REQUESTS_PER_TRIAL)
    assert not budget.is_trial_due(tried_at=1)
    assert budget.is_trial_due(tried_at=0)

    budget.first_requests.pay(1000.0)
    assert not budget.is_trial_due(tried_at=0)
