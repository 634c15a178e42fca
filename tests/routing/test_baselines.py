"""The marks that policies are measured by have to be right themselves."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from meshnet_protocol.ids import NodeId
from meshnet_tracker.bench.contenders import CONTENDERS, ORACLE
from meshnet_tracker.bench.glr_klucb import divergence, has_changed, upper_bound
from meshnet_tracker.bench.machines import Machine
from meshnet_tracker.bench.runs import Job, run_job
from meshnet_tracker.bench.static_split import PARTS, crowding, split
from meshnet_tracker.bench.worlds import make_world


def machines_of(topology: str) -> list[Machine]:
    world = make_world(topology, "stationary", seed=1, duration_s=60)
    return [Machine(spec, NodeId(spec.name), spec.layer_s) for spec in world.nodes]


def test_a_lone_request_goes_the_quickest_way_and_a_crowd_is_spread() -> None:
    machines = machines_of("A")
    quickest = min(machines, key=lambda machine: machine.layer_s)

    assert {way[0].spec.name for way in split(machines, 0.001)} == {quickest.spec.name}
    assert len({way[0].spec.name for way in split(machines, 3.0)}) > 2


def test_equal_machines_get_equal_shares_of_a_crowd() -> None:
    machines = [
        replace(machine, spec=replace(machine.spec, prompt_share=0.1, access_s=0.0), layer_s=0.001)
        for machine in machines_of("A")
    ]
    shares = Counter(way[0].spec.name for way in split(machines, 4.0))

    assert sum(shares.values()) == PARTS
    assert max(shares.values()) - min(shares.values()) <= 2


def test_there_is_no_split_where_no_way_leads_to_the_end() -> None:
    assert split([machine for machine in machines_of("B") if machine.spec.first == 0], 1.0) == []


def test_a_crowd_slows_down_as_its_mean_says() -> None:
    assert crowding(0.0, 4) == 1.0
    assert 1.0 < crowding(3.0, 4) < 1.2
    assert crowding(40.0, 4) == pytest.approx(10.25)


def test_the_best_split_beats_chance_and_not_the_one_who_sees_the_crowd() -> None:
    names = ("uniform", "best-static-split", ORACLE)
    done = run_job(Job("A", "load-0.6", 2, names, 900.0))
    uniform, static, oracle = (done.by_policy[name].tps for name in names)
    assert uniform < static < oracle


def test_a_bound_lies_as_far_from_the_mean_as_there_is_room() -> None:
    bound = upper_bound(0.3, 0.1)
    assert divergence(0.3, bound) == pytest.approx(0.1, abs=1e-3)
    assert upper_bound(0.3, 0.0) == pytest.approx(0.3, abs=1e-3)


def test_a_change_of_the_mean_is_seen_and_mere_noise_is_not() -> None:
    rng = Random(1)
    steady = [min(1.0, max(0.0, rng.gauss(0.6, 0.1))) for _ in range(200)]
    assert not has_changed(steady)
    assert has_changed([*steady, *(reward / 5 for reward in steady[:40])])
    assert not has_changed([0.5])


def test_a_bandit_that_tests_for_changes_finds_the_best_of_a_few_idle_routes() -> None:
    done = run_job(Job("E", "stationary", 1, ("glr-klucb", "uniform"), 1800.0))
    assert done.by_policy["glr-klucb"].near_best > done.by_policy["uniform"].near_best
    assert "glr-klucb" in CONTENDERS
