"""Every policy that ``meshnet bench routing`` knows by name, with the candidates it chooses among."""

from dataclasses import replace

from meshnet_tracker.bench.baselines import (
    Baseline,
    DiscountedUcb,
    EpsilonGreedy,
    LeastInFlight,
    LeastWork,
    LiteLlm,
    PeakEwma,
    Petals,
    ThompsonHops,
    ThompsonRoutes,
    Uniform,
    every_chain,
)
from meshnet_tracker.bench.contender import Contender
from meshnet_tracker.bench.glr_klucb import GlrKlUcb
from meshnet_tracker.bench.oracles import Clairvoyant
from meshnet_tracker.bench.static_split import BestStaticSplit
from meshnet_tracker.policies.adaptive import AdaptivePolicy
from meshnet_tracker.policies.proportional import ProportionalPolicy
from meshnet_tracker.routing_stats import RoutingConfig

ORACLE = "clairvoyant"
DEFAULT = "proportional"
ADAPTIVE = "adaptive"


def _proportional(name: str, config: RoutingConfig, *, has_every_chain: bool = False) -> Contender:
    made = Contender(name, lambda t: ProportionalPolicy(stats=t.stats, config=t.config), config=config)
    return replace(made, enumerate_routes=every_chain, cap="all") if has_every_chain else made


def _baseline(make: type[Baseline]) -> Contender:
    return Contender(make.name, lambda _: make(), enumerate_routes=every_chain, cap="all")


_MADE = (
    Contender(ORACLE, lambda t: Clairvoyant(t.machines), cap="all"),
    Contender("clairvoyant-kind", lambda t: Clairvoyant(t.machines, is_kind=True), cap="all"),
    Contender("clairvoyant-daring", lambda t: Clairvoyant(t.machines, is_daring=True), cap="all"),
    Contender("best-static-split", lambda t: BestStaticSplit(t.machines, requests_per_s=t.requests_per_s), cap="all"),
    Contender(ADAPTIVE, lambda t: AdaptivePolicy(config=t.config), cap="all"),
    _proportional(DEFAULT, RoutingConfig()),
    _proportional("proportional-s0.05", RoutingConfig(explore_share=0.05)),
    _proportional("proportional-s0.1", RoutingConfig(explore_share=0.1)),
    _proportional("proportional-a2-s0.05", RoutingConfig(explore_share=0.05, weight_alpha=2)),
    _proportional("proportional-a2-s0.1", RoutingConfig(explore_share=0.1, weight_alpha=2)),
    _proportional("proportional-a3-s0.05", RoutingConfig(explore_share=0.05, weight_alpha=3)),
    _proportional("proportional-a3-s0.1", RoutingConfig(explore_share=0.1, weight_alpha=3)),
    _proportional("proportional-a4-s0.05", RoutingConfig(explore_share=0.05, weight_alpha=4)),
    _proportional("proportional-a8-s0.05", RoutingConfig(explore_share=0.05, weight_alpha=8)),
    _proportional("proportional-all", RoutingConfig(), has_every_chain=True),
    _proportional("proportional-all-a4-s0.05", RoutingConfig(explore_share=0.05, weight_alpha=4), has_every_chain=True),
    _proportional("proportional-all-a8-s0.05", RoutingConfig(explore_share=0.05, weight_alpha=8), has_every_chain=True),
    _baseline(Uniform),
    _baseline(LeastInFlight),
    _baseline(EpsilonGreedy),
    _baseline(PeakEwma),
    _baseline(LeastWork),
    _baseline(LiteLlm),
    _baseline(Petals),
    _baseline(DiscountedUcb),
    _baseline(GlrKlUcb),
    Contender("thompson-route", lambda _: ThompsonRoutes(with_load=False), enumerate_routes=every_chain, cap="all"),
    Contender("thompson-route-load", lambda _: ThompsonRoutes(with_load=True), enumerate_routes=every_chain, cap="all"),
    _baseline(ThompsonHops),
)
CONTENDERS = {contender.name: contender for contender in _MADE}
