"""Who is to blame for a failed request, and what it costs the guilty."""

from random import Random

from meshnet_protocol.ids import Incarnation
from meshnet_tracker.policies.faults import FaultLedger
from meshnet_tracker.policies.node_beliefs import DISTRUSTED_S_MAX, TRIALS_TO_PASS, NodeBelief


def beliefs(count: int) -> list[NodeBelief]:
    return [NodeBelief(0.0) for _ in range(count)]


def test_one_failure_sets_a_node_aside_until_it_has_passed_its_trials() -> None:
    ledger, (node,) = FaultLedger(), beliefs(1)
    ledger.failed((node,), [True], 10.0)
    assert node.distrusted_until > 10.0

    for trial in range(TRIALS_TO_PASS):
        assert node.distrusted_until > 20.0 + trial
        ledger.succeeded((node,), taken_at=20.0 + trial, now=20.0 + trial)
    assert node.distrusted_until < 30.0


def test_what_was_under_way_when_a_node_failed_is_no_trial() -> None:
    ledger, (node,) = FaultLedger(), beliefs(1)
    ledger.failed((node,), [True], 10.0)
    for _ in range(2 * TRIALS_TO_PASS):
        ledger.succeeded((node,), taken_at=9.0, now=11.0)
    assert node.distrusted_until > 11.0


def test_distrust_ends_with_time_and_with_a_restart() -> None:
    ledger, (node, other) = FaultLedger(), beliefs(2)
    node.start(Incarnation("first"), layer_tokens_per_s=1.0, slots=1, requests=0, now=0.0)
    ledger.failed((node,), [True], 10.0)
    ledger.failed((other,), [True], 10.0)
    node.start(Incarnation("second"), layer_tokens_per_s=1.0, slots=1, requests=0, now=11.0)

    assert node.distrusted_until < 11.0
    assert other.distrusted_until <= 10.0 + DISTRUSTED_S_MAX


def test_what_a_node_that_comes_and_goes_costs_is_the_requests_that_must_run_again() -> None:
    ledger, (node,) = FaultLedger(), beliefs(1)
    for second in range(400):
        if second % 4:
            ledger.succeeded((node,), taken_at=float(second), now=float(second))
        else:
            ledger.failed((node,), [True], float(second))
    # One in four fails, so three successes need four requests.
    assert 0.25 < node.fault_price(400.0) < 0.4


def test_a_head_that_accuses_its_tails_of_its_own_failures_is_found_out() -> None:
    """The liar's routes break one time in two, and it always names the tail; other heads do well with all of them."""
    rng, ledger, now = Random(5), FaultLedger(), 0.0
    liar, *honest = beliefs(3)
    tails = beliefs(4)
    for _ in range(400):
        now += 1.0
        head, tail = rng.choice([liar, *honest]), rng.choice(tails)
        if head is liar and rng.random() < 0.5:
            ledger.failed((head, tail), [True, True], now)
        else:
            ledger.succeeded((head, tail), taken_at=now, now=now)
    assert liar.fault_share(now) > 0.3
    assert all(node.fault_share(now) < 0.05 for node in (*honest, *tails))
    assert liar.distrusted_until > now
    assert all(node.distrusted_until < now for node in honest)


def test_a_tail_that_breaks_its_links_is_found_out_though_each_time_the_hop_before_it_is_a_suspect_too() -> None:
    rng, ledger, now = Random(6), FaultLedger(), 0.0
    heads, tails = beliefs(3), beliefs(3)
    for _ in range(300):
        now += 1.0
        head, tail = rng.choice(heads), rng.choice(tails)
        if tail is tails[0] and rng.random() < 0.2:
            ledger.failed((head, tail), [True, True], now)
        else:
            ledger.succeeded((head, tail), taken_at=now, now=now)
    assert tails[0].fault_share(now) > 0.1
    assert all(node.fault_share(now) < 0.03 for node in (*heads, *tails[1:]))
    assert all(node.distrusted_until < now for node in (*heads, *tails[1:]))
