"""Plots of measurements: SVG, so that a page can show them and a person can zoom."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt


def cumulative(series: Mapping[str, Sequence[float]], unit: str, path: Path) -> None:
    """For each name the share of values below x; the axis is logarithmic."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, values in series.items():
        if values:
            ordered = sorted(values)
            axes.step(
                ordered, [(n + 1) / len(ordered) for n in range(len(ordered))], where="post", label=name
            )
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.set_ylabel("share of kills")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
    plt.close(figure)


def lines(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    across: str,
    unit: str,
    path: Path,
    *,
    ticks: Sequence[str] | None = None,
) -> None:
    """A line for each name over the same `x`; the other axis begins at zero or below, so that what looks flat
    is flat. `ticks`: the text at each `x`, on a logarithmic axis then."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, values in series.items():
        axes.plot(x, values, marker=".", label=name)
    if ticks is not None:
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, ticks)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel(across)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    if series:
        axes.legend(fontsize=8)
    figure.savefig(path)
    plt.close(figure)


def stacked(
    panels: Mapping[str, Mapping[str, Sequence[float]]], names: Sequence[str], unit: str, path: Path
) -> None:
    """For each panel one bar for each label, its layers (`names`) one on the other; each panel has a scale of
    its own."""
    size, widths = (1.5 + 1.4 * max(len(panels), 1), 4.5), [len(bars) for bars in panels.values()] or [1]
    figure, all_axes = plt.subplots(
        1, len(widths), figsize=size, layout="constrained", width_ratios=widths, squeeze=False
    )
    for axes, (title, bars_of) in zip(all_axes[0], panels.items(), strict=False):
        base = [0.0] * len(bars_of)
        for layer, name in enumerate(names):
            values = [bar[layer] for bar in bars_of.values()]
            axes.bar(range(len(values)), values, 0.7, bottom=base, label=name)
            base = [below + value for below, value in zip(base, values, strict=True)]
        axes.set_xticks(range(len(bars_of)), list(bars_of), rotation=60, ha="right", fontsize=8)
        axes.set_title(title, fontsize=9)
        axes.tick_params(axis="y", labelsize=8)
        axes.grid(axis="y", alpha=0.3)
    all_axes[0][0].set_ylabel(unit)
    if panels:
        figure.legend(*all_axes[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.savefig(path)
    plt.close(figure)


def bars(
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    unit: str,
    path: Path,
    *,
    logarithmic: bool = False,
    bounds: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> None:
    """Groups of bars side by side; `logarithmic` where the values span decades. `bounds`: the lower and upper
    one of each value."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    width = 0.8 / max(len(groups), 1)
    for number, (name, values) in enumerate(groups.items()):
        at = [index + number * width for index in range(len(labels))]
        axes.bar(at, values, width, label=name)
        for x, value, (low, high) in zip(at, values, (bounds or {}).get(name, ()), strict=False):
            axes.plot([x, x], [min(low, value), max(high, value)], color="black", linewidth=1)
    axes.set_xticks(
        [index + 0.4 - width / 2 for index in range(len(labels))], labels, rotation=20, ha="right", fontsize=8
    )
    axes.set_ylabel(unit)
    if logarithmic and any(value > 0 for values in groups.values() for value in values):
        axes.set_yscale("log")
    axes.grid(axis="y", alpha=0.3)
    if groups:
        axes.legend(fontsize=8)
    figure.savefig(path)
    plt.close(figure)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    largest: float,
    unit: str,
    path: Path,
) -> None:
    """A cell for each row and column: red below zero, blue above, as dark as may be at `largest`."""
    size = (2.5 + 0.8 * len(columns), 1.5 + 0.28 * len(rows))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    shown = axes.imshow(values, cmap="RdBu", vmin=-largest, vmax=largest, aspect="auto")
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            dark = abs(value) > 0.6 * largest
            axes.text(x, y, f"{value:+.2f}", ha="center", va="center", fontsize=7, color="w" if dark else "k")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    figure.colorbar(shown, label=unit)
    figure.savefig(path)
    plt.close(figure)


def reliability(series: Mapping[str, Sequence[tuple[float, float, int]]], path: Path) -> None:
    """Shares as they were predicted and as they were, a line for each name; its points are as large as they
    stand for many. On the diagonal the two agree."""
    figure, axes = plt.subplots(figsize=(6, 5.5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
    for name, points in series.items():
        most = max([count for _, _, count in points], default=1)
        (line,) = axes.plot([x for x, _, _ in points], [y for _, y, _ in points], linewidth=1, label=name)
        areas = [8.0 + 60.0 * count / most for _, _, count in points]
        axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], s=areas, color=line.get_color())
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("predicted chance to be in time")
    axes.set_ylabel("share in time")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
    plt.close(figure)


def finish_rates(cases: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], path: Path) -> None:
    """For each case a small plot: finish rate over SLO, a line per policy."""
    across = min(len(cases), 5)
    down = -(-len(cases) // across)
    figure, grid = plt.subplots(
        down, across, figsize=(3 * across, 2.2 * down), layout="constrained", squeeze=False, sharey=True
    )
    for axes, (case, series) in zip(grid.flat, cases.items(), strict=False):
        for name, points in series.items():
            axes.plot(*zip(*points, strict=True), marker=".", label=name)
        axes.set_title(case, fontsize=8)
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.3)
    for axes in list(grid.flat)[len(cases) :]:
        axes.set_axis_off()
    figure.supxlabel("SLO, in P99s of the stand-alone time")
    figure.supylabel("finish rate")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=8)
    figure.savefig(path)
    plt.close(figure)
