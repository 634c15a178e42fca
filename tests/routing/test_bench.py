"""The bench judges policies, so it has to be fair, repeatable, and able to tell a good one from a bad one."""

import json
import math

import pytest

from meshnet_tracker.bench.contenders import ADAPTIVE, CONTENDERS, DEFAULT, ORACLE
from meshnet_tracker.bench.decision_time import decision_us
from meshnet_tracker.bench.figures import paired_interval
from meshnet_tracker.bench.pictures import over_time, regret_over_time
from meshnet_tracker.bench.report import COLUMNS, as_json, cells_of_row, gather
from meshnet_tracker.bench.runs import Done, Job, make_jobs, run_job
from meshnet_tracker.bench.simulator import Simulation
from meshnet_tracker.bench.traffic import capacity_tps, make_requests
from meshnet_tracker.bench.worlds import SCENARIOS, TOPOLOGIES, make_world

MINUTES_S = 600.0


def run(topology: str, scenario: str, *policies: str, seed: int = 1, duration_s: float = MINUTES_S) -> Done:
    return run_job(Job(topology, scenario, seed, policies, duration_s))


def test_a_run_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    first, again = run("B", "slow-down", ADAPTIVE), run("B", "slow-down", ADAPTIVE)

    assert first == again
    assert first.by_policy != run("B", "slow-down", ADAPTIVE, seed=2).by_policy


def test_every_policy_meets_the_same_requests_whoever_ran_before_it() -> None:
    alone = run("A", "stationary", DEFAULT, duration_s=120)
    after = run("A", "stationary", ORACLE, ADAPTIVE, DEFAULT, duration_s=120)

    assert alone.by_policy[DEFAULT] == after.by_policy[DEFAULT]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_runs_in_every_kind_of_topology_and_loses_no_request(scenario: str) -> None:
    for topology in ("B", "E"):
        world = make_world(topology, scenario, seed=3, duration_s=45)
        requests = make_requests(world, seed=3, duration_s=45)
        simulation = Simulation(world, requests, CONTENDERS[ADAPTIVE], seed=3)
        record = simulation.run(1e5)
        assert {asked.outcome for asked in record.asked} <= {"completed", "aborted", "failed"}
        assert record.router.in_flight_total == 0


@pytest.mark.parametrize("policy", CONTENDERS)
def test_every_policy_answers_most_requests(policy: str) -> None:
    figures = run("B", "stationary", policy, duration_s=60).by_policy[policy]

    assert figures.failed_share < 0.5
    assert figures.tps > 0


def test_topologies_have_the_number_of_routes_they_are_known_by() -> None:
    counts = {}
    for topology in ("A", "B", "C", "E", "F"):
        world = make_world(topology, "stationary", seed=1, duration_s=60)
        simulation = Simulation(world, [], CONTENDERS["uniform"], seed=1)
        counts[topology] = len(simulation.router.candidates(simulation.model))
    assert counts == {"A": 6, "B": 48, "C": 756, "E": 2, "F": 10}


def test_capacity_is_every_nodes_cap_over_the_time_a_token_takes() -> None:
    world = make_world("A", "stationary", seed=1, duration_s=60)
    assert capacity_tps(world) == pytest.approx(sum(node.cap / (node.layer_s * 40) for node in world.nodes))
    assert all(capacity_tps(make_world(t, "stationary", seed=1, duration_s=60)) > 0 for t in TOPOLOGIES)


def test_the_bench_tells_knowing_from_guessing_and_adaptive_is_near_the_one_who_knows() -> None:
    done = [run("B", "stationary", ORACLE, ADAPTIVE, DEFAULT, "uniform", seed=seed) for seed in range(2)]
    (cell,) = gather(done)
    rows = {policy: cell.row(policy) for policy in cell.by_policy}

    assert rows["uniform"]["tps"] < rows[DEFAULT]["tps"] < rows[ADAPTIVE]["tps"]
    assert rows[ADAPTIVE]["tps"] > 0.93 * rows[ORACLE]["tps"]
    assert rows[ORACLE]["tps_vs_oracle"] == [0.0, 0.0, 0.0]
    assert len(cells_of_row(rows[ADAPTIVE])) == len(COLUMNS)


def test_a_slow_down_is_noticed_and_a_liar_left_alone() -> None:
    slow = gather([run("B", "slow-down", ORACLE, ADAPTIVE, duration_s=1500, seed=s) for s in range(2)])[0]
    fast_failure = run("A", "fail-fast", ADAPTIVE, duration_s=1500).by_policy[ADAPTIVE]

    recovered_s = slow.row(ADAPTIVE)["recovery_s"]
    assert recovered_s is not None
    assert recovered_s <= 60
    assert fast_failure.marked_share is not None
    assert fast_failure.marked_share < 0.02


@pytest.mark.parametrize("topology", ["A", "B", "C", "D"])
def test_scouts_cost_little_even_where_requests_are_few_and_nodes_many(topology: str) -> None:
    """One request in fifty seconds, and up to 24 nodes that nothing is known of at the start."""
    costs = [
        run(topology, "sparse", ADAPTIVE, seed=s, duration_s=1800).by_policy[ADAPTIVE].scout_cost for s in range(8)
    ]

    assert sum(costs) / len(costs) < 0.02


def test_an_oracle_that_dares_to_use_a_node_that_cuts_off_is_ahead_of_one_that_does_not() -> None:
    figures = run("E", "truncate", ORACLE, "clairvoyant-daring").by_policy

    assert figures["clairvoyant-daring"].tps > 1.2 * figures[ORACLE].tps
    assert (figures["clairvoyant-daring"].marked_share or 0) > 0.9


def test_the_json_line_is_strict_json() -> None:
    cells = gather([run("E", "sparse", ADAPTIVE, ORACLE, duration_s=60)])
    text = json.dumps(as_json(cells, seeds=1), allow_nan=False)
    assert json.loads(text)["benchmark"] == "routing"


def test_a_paired_interval_holds_the_change_and_knows_no_change() -> None:
    change, low, high = paired_interval([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert change == pytest.approx(0.1)
    assert low == pytest.approx(high)
    assert paired_interval([1.0, 2.0], [1.0, 2.0]) == (0.0, 0.0, 0.0)


def test_time_lines_hold_every_request_and_regret_against_oneself_is_none() -> None:
    seeds = [run("B", "stationary", DEFAULT, ORACLE, seed=seed, duration_s=300).by_policy for seed in range(2)]
    mine, oracle = [each[DEFAULT] for each in seeds], [each[ORACLE] for each in seeds]
    times, speeds = over_time(mine, 300, lambda point: point.tps)

    assert times[:2] == [0.0, 60.0]
    assert 0 < min(speeds) <= max(speeds) < 200
    assert regret_over_time(oracle, oracle, 300)[1][-1] == 0.0
    assert regret_over_time(mine, oracle, 300)[1][-1] > 0.0


def test_jobs_are_every_world_with_every_seed() -> None:
    assert len(make_jobs("AB", ["stationary", "join"], [ADAPTIVE], seeds=3, duration_s=60)) == 12


def test_a_decision_is_measured() -> None:
    alone_us, whole_us = decision_us(CONTENDERS[ADAPTIVE], 6)
    assert 0 < alone_us < math.inf
    assert 0 < whole_us < math.inf
