"""The bench's results as pictures: speed, regret and share of good routes over time. Needs matplotlib."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from meshnet_tracker.bench.contenders import ORACLE
from meshnet_tracker.bench.figures import Figures, Point
from meshnet_tracker.bench.report import Cell

WINDOW_S = 60.0

Line = tuple[list[float], list[float]]


def can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def plot(cell: Cell, folder: Path) -> Path:
    """One picture of a world, one line per policy, all seeds together. Needs matplotlib (the group ``plots``)."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    figure, (speed, regret, share) = pyplot.subplots(3, 1, figsize=(9, 10), sharex=True)
    for policy, seeds in cell.by_policy.items():
        speed.plot(*over_time(seeds, cell.duration_s, lambda point: point.tps), label=policy)
        share.plot(*over_time(seeds, cell.duration_s, lambda point: 100.0 * point.is_near_best), label=policy)
        if ORACLE in cell.by_policy and policy != ORACLE:
            regret.plot(*regret_over_time(seeds, cell.by_policy[ORACLE], cell.duration_s), label=policy)
    if cell.event_at_s is not None:
        for axes in (speed, regret, share):
            axes.axvline(cell.event_at_s, color="grey", linestyle=":")
    speed.set(ylabel="tokens/s of a request", title=f"{cell.topology} {cell.scenario}")
    regret.set(ylabel="seconds lost so far, per seed")
    share.set(xlabel="seconds", ylabel="% on routes within 10 % of the best")
    speed.legend(fontsize="small")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell.topology}-{cell.scenario}.png"
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)
    return path


def over_time(seeds: Sequence[Figures], duration_s: float, value: Callable[[Point], float]) -> Line:
    """Means of a value over windows; a window in which nothing was asked is left out."""
    bins: list[list[float]] = [[] for _ in range(int(duration_s / WINDOW_S) + 1)]
    for figures in seeds:
        for point in figures.timeline:
            bins[int(point.at_s / WINDOW_S)].append(value(point))
    filled = [(index * WINDOW_S, fmean(values)) for index, values in enumerate(bins) if values]
    return [at_s for at_s, _ in filled], [mean for _, mean in filled]


def regret_over_time(mine: Sequence[Figures], oracle: Sequence[Figures], duration_s: float) -> Line:
    """Seconds that requests took beyond what the oracle took for the same ones, added up; a mean over seeds.

    Only requests that both completed count: a failure has no length of its own.
    """
    bins = [0.0] * (int(duration_s / WINDOW_S) + 1)
    for ours, best in zip(mine, oracle, strict=True):
        best_s = {point.at_s: point.seconds for point in best.timeline if point.tps}
        for point in ours.timeline:
            if point.tps and point.at_s in best_s:
                bins[int(point.at_s / WINDOW_S)] += (point.seconds - best_s[point.at_s]) / len(mine)
    sums = [sum(bins[: index + 1]) for index in range(len(bins))]
    return [index * WINDOW_S for index in range(len(bins))], sums
