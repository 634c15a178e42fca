"""A node that comes and goes cannot keep the others' measurements stale, and is back once it stays."""

import itertools

from meshnet_protocol.messages import Heartbeat
from meshnet_tracker.fleet import (
    Fleet,
    FleetEffect,
    HeartbeatReceived,
    NodeNoted,
    NodeRegistered,
    Tick,
    TopologyChanged,
)
from meshnet_tracker.testing import make_registration

HALF_PERIOD_S = 20.0
HEARTBEAT_S = 1.0


class Flapper:
    """A steady node and one that is up and down by turns, in pretend time."""

    def __init__(self) -> None:
        self.fleet = Fleet(heartbeat_period_s=HEARTBEAT_S)
        self.now = 0.0
        self.effects: list[FleetEffect] = []
        self._runs = itertools.count()
        self._tell(NodeRegistered(make_registration("steady", "0-39")))

    def live(self, seconds: float, *, is_up: bool) -> None:
        run = next(self._runs)
        flapper = make_registration("flapper", "0-39", incarnation=f"run {run}")
        if is_up:
            self._tell(NodeRegistered(flapper))
        ends_at = self.now + seconds
        while self.now < ends_at:
            self.now += HEARTBEAT_S
            for node in [make_registration("steady", "0-39"), *([flapper] if is_up else [])]:
                beat = Heartbeat(
                    node_id=node.node_id, incarnation=node.incarnation, queue_depth=0, entry_layers=node.entry_layers
                )
                self._tell(HeartbeatReceived(beat))
            self._tell(Tick())

    def epochs(self) -> int:
        """How often the epoch has moved since last asked."""
        count = sum(isinstance(effect, TopologyChanged) for effect in self.effects)
        self.effects.clear()
        return count

    @property
    def ready(self) -> set[str]:
        return {node.registration.instance for node in self.fleet.models()[0].ready_nodes()}

    def _tell(self, event: NodeRegistered | HeartbeatReceived | Tick) -> None:
        self.effects += self.fleet.handle(event, self.now)


def test_a_flapping_node_moves_the_epoch_a_few_times_and_then_no_more() -> None:
    mesh = Flapper()
    for _ in range(5):
        mesh.live(HALF_PERIOD_S, is_up=True)
        mesh.live(HALF_PERIOD_S, is_up=False)
    assert 0 < mesh.epochs() <= 10

    for _ in range(90):
        mesh.live(HALF_PERIOD_S, is_up=True)
        assert mesh.ready == {"steady"}
        mesh.live(HALF_PERIOD_S, is_up=False)
    assert mesh.epochs() == 0, "an hour of flapping"


def test_a_node_that_stays_takes_part_again_within_minutes() -> None:
    mesh = Flapper()
    for _ in range(100):
        mesh.live(HALF_PERIOD_S, is_up=True)
        mesh.live(HALF_PERIOD_S, is_up=False)
    mesh.epochs()

    mesh.live(660.0, is_up=True)

    assert mesh.ready == {"steady", "flapper"}
    assert mesh.epochs() == 1


def test_a_node_that_restarts_now_and_then_is_no_flapper() -> None:
    mesh = Flapper()
    for _ in range(10):
        mesh.live(300.0, is_up=True)
        assert mesh.ready == {"steady", "flapper"}
        mesh.live(HALF_PERIOD_S, is_up=False)
    assert mesh.epochs() == 1 + 20, "every one of its joins and leaves, and the steady node's"


def test_a_settling_node_is_noted_and_no_part_of_the_topology() -> None:
    mesh = Flapper()
    for _ in range(6):
        mesh.live(HALF_PERIOD_S, is_up=True)
        mesh.live(HALF_PERIOD_S, is_up=False)
    mesh.epochs()
    mesh.live(1.0, is_up=True)

    assert [effect.reason for effect in mesh.effects if isinstance(effect, NodeNoted)] == ["settling"]
