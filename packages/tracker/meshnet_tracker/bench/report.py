"""The bench's results as rows for a table and as one JSON object."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from meshnet_tracker.bench.contenders import CONTENDERS, DEFAULT, ORACLE
from meshnet_tracker.bench.figures import Figures, paired_interval, recovery_s
from meshnet_tracker.bench.runs import Done

COLUMNS = (
    "policy", "cap", "tok/s", "of oracle", "vs default", "ms/tok", "regret", "p50 s", "p95 s", "p99 s", "near best",
    "scouts", "scout cost", "failed", "marked", "first s", "recovery s",
)  # fmt: skip


class Cell:
    """All seeds of one world: per policy, one ``Figures`` for each seed, in the order of the seeds."""

    def __init__(self, topology: str, scenario: str, event_at_s: float | None, duration_s: float) -> None:
        self.topology, self.scenario = topology, scenario
        self.event_at_s, self.duration_s = event_at_s, duration_s
        self.by_policy: dict[str, list[Figures]] = {}

    def row(self, policy: str) -> dict[str, Any]:
        """The figures of one policy: means over seeds, changes with 95 % limits of the paired bootstrap."""
        mine = self.by_policy[policy]
        oracle, default = self.by_policy.get(ORACLE), self.by_policy.get(DEFAULT)
        marked = [f.marked_share for f in mine if f.marked_share is not None]
        first = [f.first_sample_s for f in mine if f.first_sample_s is not None]
        row = {
            "policy": policy,
            "cap": CONTENDERS[policy].cap,
            **{name: _mean(getattr(f, name) for f in mine) for name in _MEANS},
            "marked_share": _mean(marked) if marked else None,
            "first_sample_s_max": max(first) if first else None,
            "scouts_on_one_unproven_node_max": max(f.scouts_max for f in mine),
            "tps_vs_oracle": _change(mine, oracle),
            "tps_vs_default": _change(mine, default),
            "regret_s": _regret_s(mine, oracle),
            "recovery_s": None,
        }
        if self.event_at_s is not None and oracle is not None:
            row["recovery_s"] = recovery_s(mine, oracle, self.event_at_s, self.duration_s)
        return {key: _plain(value) for key, value in row.items()}


_MEANS = (
    "tps", "token_s", "p50_s", "p95_s", "p99_s", "near_best", "scout_share", "scout_cost", "failed_share",
    "warm_up_tps", "requests",
)  # fmt: skip


def gather(done: Iterable[Done]) -> list[Cell]:
    cells: dict[tuple[str, str], Cell] = {}
    for one in done:
        key = (one.job.topology, one.job.scenario)
        cell = cells.setdefault(key, Cell(*key, one.event_at_s, one.job.duration_s))
        for policy, figures in one.by_policy.items():
            cell.by_policy.setdefault(policy, []).append(figures)
    return list(cells.values())


def as_json(cells: Sequence[Cell], **about: Any) -> dict[str, Any]:
    """What the bench prints as its last line."""
    results = [
        {"topology": cell.topology, "scenario": cell.scenario, **cell.row(policy)}
        for cell in cells
        for policy in cell.by_policy
    ]
    return {"benchmark": "routing", **about, "results": results}


def cells_of_row(row: Mapping[str, Any]) -> list[str]:
    """One line of the table, as text, in the order of ``COLUMNS``."""
    return [
        row["policy"],
        row["cap"],
        _number(row["tps"], 2),
        _change_text(row["tps_vs_oracle"]),
        _change_text(row["tps_vs_default"]),
        _number(row["token_s"], 1, 1000),
        _number(row["regret_s"], 0),
        _number(row["p50_s"], 1),
        _number(row["p95_s"], 1),
        _number(row["p99_s"], 1),
        _percent(row["near_best"]),
        _percent(row["scout_share"]),
        _percent(row["scout_cost"]),
        _percent(row["failed_share"]),
        _percent(row["marked_share"]),
        _number(row["first_sample_s_max"], 0),
        _number(row["recovery_s"], 0),
    ]


def _change(mine: Sequence[Figures], other: Sequence[Figures] | None) -> list[float] | None:
    if other is None:
        return None
    return list(paired_interval([f.tps for f in mine], [f.tps for f in other]))


def _regret_s(mine: Sequence[Figures], oracle: Sequence[Figures] | None) -> float | None:
    """Per 1,000 tokens, above what the oracle took for the same requests."""
    if oracle is None:
        return None
    return 1000 * (_mean(f.token_s for f in mine) - _mean(f.token_s for f in oracle))


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _plain(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, float):
        return round(value, 5) if math.isfinite(value) else None
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _change_text(change: list[float] | None) -> str:
    if change is None or None in change:
        return "-"
    return "{:+.1f} [{:+.1f} {:+.1f}]".format(*(100 * part for part in change))
