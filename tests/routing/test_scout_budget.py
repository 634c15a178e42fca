"""What scouting may cost, and that nothing is spent by asking."""

import math

from meshnet_tracker.policies.scout_budget import (
    FIRST_REQUEST_WAIT_MAX,
    REQUESTS_PER_TRIAL,
    SECOND_LOOK_PERIOD_S,
    SECOND_LOOKS_PER_REQUEST,
    SECOND_LOOKS_SAVED_MAX,
    ScoutBudget,
)


def decide(budget: ScoutBudget, now: float, **what: bool) -> None:
    plain = {"is_first_request": False, "has_looked": False, "is_second_look": False}
    budget.decided(now, detour_s=0.0, **{**plain, **what})


def rich(requests: int = 1000) -> ScoutBudget:
    budget = ScoutBudget()
    for number in range(requests):
        decide(budget, float(number))
        budget.completed(10.0)
    return budget


def test_second_looks_are_a_share_of_the_requests_however_cheap_they_seem() -> None:
    budget = rich()
    looks = 0
    for number in range(1000):
        now = 2000.0 + 2 * SECOND_LOOK_PERIOD_S * number
        is_look = budget.may_look(now)
        looks += is_look
        decide(budget, now, has_looked=is_look, is_second_look=is_look)
        budget.completed(10.0)
    assert 0 < looks <= 1000 * SECOND_LOOKS_PER_REQUEST + SECOND_LOOKS_SAVED_MAX


def test_a_second_look_waits_for_seconds_to_pay_it_from() -> None:
    budget = ScoutBudget()
    assert not budget.may_look(5.0)
    budget.completed(10.0)
    assert budget.may_look(5.0)
    budget.decided(5.0, detour_s=1.0, is_first_request=False, has_looked=True, is_second_look=True)
    assert not budget.may_look(1e6)


def test_a_look_in_vain_is_not_repeated_at_once() -> None:
    budget = rich()
    decide(budget, 2000.0, has_looked=True)
    assert not budget.may_look(2000.0 + SECOND_LOOK_PERIOD_S / 2)
    assert budget.may_look(2000.0 + SECOND_LOOK_PERIOD_S)


def test_a_first_request_may_cost_more_the_longer_it_waits_and_in_the_end_anything_but_one_at_a_time() -> None:
    budget = rich(100)
    joined = budget.requests
    costs: list[float] = []
    for _ in range(FIRST_REQUEST_WAIT_MAX):
        costs.append(budget.first_request_s_max(joined))
        decide(budget, 200.0)
    assert costs == sorted(costs)
    assert max(costs) < math.inf
    assert budget.first_request_s_max(joined) == math.inf

    decide(budget, 200.0, is_first_request=True)
    assert budget.first_request_s_max(joined) < math.inf, "the next one of those that joined together waits again"


def test_a_trial_is_one_request_in_so_many() -> None:
    budget = rich(REQUESTS_PER_TRIAL)
    assert not budget.is_trial_due(tried_at=1)
    assert budget.is_trial_due(tried_at=0)
