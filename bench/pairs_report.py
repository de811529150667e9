"""Tables and pictures of the accuracies of heads on pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

from dpprobe import artifacts
from dpprobe.exhibits import style
from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis
from pairs import Pair
from pairs_regret import Regret, regret
from pairs_scores import Score

AUTO, BALANCED, CEILING = "auto", "auto_balanced", "nonprivate"
BLACK = "#000000"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A head on a pair at an epsilon; `head` is the one trained, of `auto` the chosen one."""

    head: str
    scores: tuple[Score, ...] = ()
    fault: str | None = None

    def values(self, measure: str = "accuracy") -> list[float]:
        """Returns a measure for each seed; empty where the head refuses or did not run."""
        values = [getattr(score, measure) for score in self.scores]
        return [value for value in values if value is not None]

    @property
    def refused(self) -> str | None:
        return self.fault or next((score.fault for score in self.scores if score.fault), None)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All cells of a pair by (name, epsilon), and the number of its test examples."""

    pair: Pair
    tested: int
    cells: Mapping[tuple[str, float], Cell]

    @property
    def measured(self) -> bool:
        """True if any head has run."""
        return any(cell.values() for cell in self.cells.values())

    def epsilons(self) -> list[float]:
        return sorted({epsilon for _, epsilon in self.cells if math.isfinite(epsilon)})

    def values(self, name: str, epsilon: float, measure: str = "accuracy") -> list[float]:
        cell = self.cells.get((name, epsilon))
        return [] if cell is None else cell.values(measure)

    def mean(self, name: str, epsilon: float) -> float | None:
        values = self.values(name, epsilon)
        return statistics.mean(values) if values else None

    def best(self, names: Sequence[str], epsilon: float) -> str | None:
        """Returns the head of the highest mean, if any ran."""
        means = {name: mean for name in names if (mean := self.mean(name, epsilon)) is not None}
        return max(means, key=lambda name: means[name]) if means else None

    def regrets(self, heads: Sequence[str]) -> dict[float, Regret]:
        """Returns the regret of `auto` at each epsilon at which it ran."""
        regrets = {}
        for epsilon in self.epsilons():
            chosen = self.values(AUTO, epsilon)
            others = {
                name: values
                for name in heads
                if len(values := self.values(name, epsilon)) == len(chosen)
            }
            if chosen and others:
                regrets[epsilon] = regret(chosen, others)
        return regrets


def pair_section(outcome: Outcome, heads: Sequence[str]) -> list[str]:
    """Writes a pair's table: one row per head, a column per epsilon."""
    pair = outcome.pair
    ceiling = outcome.mean(CEILING, math.inf)
    without = "" if ceiling is None else f", without privacy {ceiling:.1f}"
    lines = [
        f"### {pair.title}",
        "",
        f"`{pair.name}`: n {pair.n:,}, d {pair.dimension:,}, K {pair.classes}, "
        f"{outcome.tested:,} test rows{without}.",
        "",
        *_table(outcome, heads, "accuracy"),
    ]
    if pair.unequal == "both":
        lines += ["", "Mean over the classes:", "", *_table(outcome, heads, "macro")]
    faults = {
        name: fault
        for (name, _), cell in outcome.cells.items()
        if (fault := cell.refused) is not None
    }
    for fault in sorted(set(faults.values())):
        names = ", ".join(f"`{name}`" for name in heads if faults.get(name) == fault)
        if names:
            lines += ["", f"Not {names}: {fault}."]
    return [*lines, ""]


def _table(outcome: Outcome, heads: Sequence[str], measure: str) -> list[str]:
    epsilons = outcome.epsilons()
    lines = [_row("head", (f"epsilon {epsilon:g}" for epsilon in epsilons))]
    lines.append("|---" * (len(epsilons) + 1) + "|")
    names = [*heads, AUTO, BALANCED]
    tops = {epsilon: _top(outcome, names, epsilon, measure) for epsilon in epsilons}
    for name in names:
        texts = [_spread(outcome.values(name, epsilon, measure)) for epsilon in epsilons]
        marked = [
            f"**{text}**" if text and tops[epsilon] == text else text
            for text, epsilon in zip(texts, epsilons, strict=True)
        ]
        if any(texts):
            lines.append(_row(f"`{name}`", marked))
    regrets = outcome.regrets(heads)
    if measure == "accuracy" and regrets:
        chose = [outcome.cells.get((AUTO, epsilon)) for epsilon in epsilons]
        lines.append(_row("chosen by `auto`", ("" if one is None else one.head for one in chose)))
        for title, text in (
            ("its regret (standard error)", lambda one: f"{one.points:.1f} ({one.error:.1f})"),
            ("regret on other seeds", lambda one: f"{one.unbiased:.1f}"),
        ):
            shown = (text(regrets[value]) if value in regrets else "" for value in epsilons)
            lines.append(_row(title, shown))
    return lines


def _top(outcome: Outcome, names: Sequence[str], epsilon: float, measure: str) -> str:
    """Returns the text of the highest mean: of equal numbers both are marked."""
    lists = [values for name in names if (values := outcome.values(name, epsilon, measure))]
    return _spread(max(lists, key=statistics.mean)) if lists else ""


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    deviation = f" ({statistics.stdev(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def _row(first: str, others: Sequence[str] | object) -> str:
    return f"| {first} | " + " | ".join(others) + " |"  # type: ignore[arg-type]


def regret_summary(groups: Mapping[str, Sequence[Outcome]], heads: Sequence[str]) -> list[str]:
    """Writes the mean and the largest regret of `auto` in each group."""
    columns = ["pairs", "cells", "mean regret", "on other seeds", "largest", "where", "above 1"]
    lines = [_row("group", columns), "|---" * (len(columns) + 1) + "|"]
    for group, outcomes in groups.items():
        regrets = {
            (outcome.pair.title, epsilon): one
            for outcome in outcomes
            for epsilon, one in outcome.regrets(heads).items()
        }
        if not regrets:
            continue
        worst = max(regrets, key=lambda place: regrets[place].points)
        points = [max(one.points, 0.0) for one in regrets.values()]
        lines.append(
            f"| {group.replace('_', ' ')} | {len(outcomes)} | {len(points)} | "
            f"{statistics.mean(points):.2f} | "
            f"{statistics.mean(one.unbiased for one in regrets.values()):.2f} | "
            f"{points[list(regrets).index(worst)]:.1f} ({regrets[worst].error:.1f}) | "
            f"{worst[0]}, epsilon {worst[1]:g}: {regrets[worst].best} | "
            f"{sum(value > 1 for value in points)} |"
        )
    return [*lines, ""]


def targets(outcome: Outcome, heads: Sequence[str], wanted: Mapping[float, float],
            slow: Sequence[str]) -> list[str]:  # fmt: skip
    """Writes what was wanted of a pair beside what was reached, by the best head and by `auto`.

    Args:
      wanted: accuracy by epsilon.
      slow: heads of which the gap to the best one is shown.
    """
    columns = ["wanted", "best head", "`auto`", *(f"`{name}` behind it" for name in slow)]
    lines = [_row("epsilon", columns), "|---" * (len(columns) + 1) + "|"]
    for epsilon in outcome.epsilons():
        best = outcome.best(heads, epsilon)
        if best is None:
            continue
        top = statistics.mean(outcome.values(best, epsilon))
        auto = _spread(outcome.values(AUTO, epsilon))
        reached = f"{_spread(outcome.values(best, epsilon))} `{best}`"
        behind = [
            "" if (mean := outcome.mean(name, epsilon)) is None else f"{top - mean:.1f}"
            for name in slow
        ]
        asked = f"{wanted[epsilon]:g}" if epsilon in wanted else ""
        lines.append(_row(f"{epsilon:g}", [asked, reached, auto, *behind]))
    return [*lines, ""]


def ablation_table(
    groups: Mapping[str, Sequence[Outcome]], changes: Mapping[str, str], epsilons: Sequence[float]
) -> list[str]:
    """Writes how many points each change has brought, the mean over a group's pairs.

    Args:
      changes: name of a head with the change undone -> the head.
    """
    lines = [
        _row("change", ["head", "group", "pairs", *(f"epsilon {one:g}" for one in epsilons)]),
        "|---" * (len(epsilons) + 4) + "|",
    ]
    for change, head in changes.items():
        for group, outcomes in groups.items():
            gains = {epsilon: _gains(outcomes, head, change, epsilon) for epsilon in epsilons}
            texts = [f"{statistics.mean(one):+.1f}" if one else "" for one in gains.values()]
            if any(texts):
                pairs = max(map(len, gains.values()))
                lines.append(
                    _row(change, [f"`{head}`", group.replace("_", " "), str(pairs), *texts])
                )
    return [*lines, ""] if len(lines) > 2 else []


def _gains(outcomes: Sequence[Outcome], head: str, change: str, epsilon: float) -> list[float]:
    means = [(one.mean(head, epsilon), one.mean(change, epsilon)) for one in outcomes]
    return [new - old for new, old in means if new is not None and old is not None]


def draw(outcomes: Sequence[Outcome], heads: Sequence[str], title: str, path: Path) -> None:
    """Draws accuracy against epsilon, a panel per pair; dashed is what no privacy would give."""
    names = [*heads, AUTO]
    *others, last = style.choose_looks(len(names))
    others = [look if look[0] != BLACK else last for look in others]
    looks = dict(zip(heads, others, strict=True)) | {AUTO: (BLACK, ("-", "o"))}
    with mpl.rc_context(style.SETTINGS):
        figure, panels = style.panel_grid(len(outcomes), legend=len(names))
        lines = {}
        for outcome, axes in zip(outcomes, panels, strict=True):
            epsilons = outcome.epsilons()
            scale = EpsilonScale(finite=tuple(epsilons), infinite=False, curves=len(names))
            for name in names:
                colour, (dashes, marker) = looks[name]
                means = {one: outcome.mean(name, one) for one in epsilons}
                shown = {one: mean for one, mean in means.items() if mean is not None}
                (line,) = axes.plot(
                    [scale.place_of(one) for one in shown], list(shown.values()), color=colour,
                    linestyle=dashes, marker=marker, linewidth=2.6 if name == AUTO else 1.2,
                    alpha=0.55 if name == AUTO else 1.0, zorder=1 if name == AUTO else 2,
                )  # fmt: skip
                if shown:
                    lines[name] = line
            ceiling = outcome.mean(CEILING, math.inf)
            if ceiling is not None:
                axes.axhline(ceiling, color=style.NEUTRAL, linestyle=style.CEILING_STYLE, lw=1)
            draw_epsilon_axis(axes, scale, width=0.5)
            pair = outcome.pair
            style.title_axes(
                axes, style.shorten_middle(pair.title, 32),
                f"n {pair.n:,}, d {pair.dimension:,}, K {pair.classes}",
            )  # fmt: skip
        style.label_outer_panels(panels, "test accuracy (%)")
        drawn = [name for name in names if name in lines]
        figure.legend([lines[name] for name in drawn], drawn, loc="outside right upper")
        figure.suptitle(title, fontsize=9, x=0.01, ha="left")
        with artifacts.atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=style.DPI / 2, metadata={"Software": None})
