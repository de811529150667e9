"""The report's section on the gain from more images or a larger budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dpprobe.data.table import DatasetInfo
from dpprobe.exhibits.html_page import embed_picture
from dpprobe.planner.accuracy_plan import make_scale
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.plan_text import format_span, round_count
from dpprobe.planner.predicted_accuracy import Setting, n_that_would_do, n_to_keep, predict, too_few
from dpprobe.privacy.limits import LARGEST_EPSILON, SMALLEST_EPSILON
from dpprobe.privacy.risk import RiskEpsilon, nominal_epsilon, row_words
from dpprobe.results.best_private import best_ceiling, best_result
from dpprobe.results.summary import Entry, Grid

_POINTS = 2  # of loss, that the table names an n for


def plan_parts(
    grid: Grid, summary: Any, infos: Mapping[str, DatasetInfo], *, has_room: Callable[[int], bool]
) -> list[dict[str, Any]]:
    """Makes a part per dataset and backbone with private cells of one label per example.

    Each dataset has one figure, for the backbone with the best ceiling, or the first.

    Args:
      has_room: takes bytes for a figure; if it returns False, the figure is left out.
    """
    parts = []
    for dataset, measure in grid.measures.items():
        if not measure.is_accuracy:
            continue
        mine = [
            _Part(grid, summary, infos[dataset], dataset, backbone)
            for backbone in dict.fromkeys(name for name, _ in grid.columns)
            if _list_epsilons(grid, dataset, backbone)
        ]
        drawn = max(mine, key=lambda part: part.scale.middle * part.scale.given, default=None)
        parts += [
            part.make_content(figure=part.draw_figure(has_room) if part is drawn else None)
            for part in mine
        ]
    return parts


def unplanned_words(grid: Grid, dataset: str) -> str:
    """Explains why nothing is predicted for a dataset."""
    measure = grid.measures[dataset]
    if measure.is_accuracy:
        return "no private linear head at an ε that the planner knows"
    words = (
        "not predicted: public learning curves are of accuracy with one label per image, not of "
    )
    if measure.multi_label:
        return f"{words}{measure.title}"
    return f"{words}{measure.title}; `dpprobe plan` predicts accuracy at any n and ε"


def plan_origin() -> dict[str, Any]:
    """Describes the data behind the predictions."""
    curves = read_curves()
    return {
        "sources": curves.sources,
        "curves": len(curves.curves),
        "held": round(100 * (curves.law.band[1] - curves.law.band[0])),
    }


def _list_epsilons(grid: Grid, dataset: str, backbone: str) -> list[float]:
    return sorted(
        {
            epsilon
            for (of, epsilon, name, _), entry in grid.entries.items()
            if (of, name) == (dataset, backbone)
            and entry.private
            and not entry.network
            and SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON
        }
    )


class _Part:
    def __init__(
        self, grid: Grid, summary: Any, info: DatasetInfo, dataset: str, backbone: str
    ) -> None:
        cells = summary[(summary.dataset == dataset) & (summary.backbone == backbone)]
        private = cells[cells.private].iloc[0]
        self.dataset, self.backbone = dataset, backbone
        self.title = f"{dataset}, {backbone}"
        self.epsilons = _list_epsilons(grid, dataset, backbone)
        self.setting = Setting(
            n=int(private.n),
            classes=int(private.num_classes),
            dimension=int(private.dimension),
            epsilon=_plannable(min(self.epsilons, key=lambda epsilon: abs(math.log(epsilon)))),
            delta=float(private.delta),
        )
        patients = (info.units or {}).get("train")
        # The unit is not in a summary; n of as many patients as rows is either.
        by_patient = self.setting.n == patients != info.train_rows
        self.unit = "patient" if by_patient else "image"
        entries = [
            (epsilon, entry)
            for (of, epsilon, name, _), entry in grid.entries.items()
            if (of, name) == (dataset, backbone)
        ]
        self.ceiling = best_ceiling(entry for _, entry in entries)
        self.scale = make_scale(
            self.setting.classes,
            ceiling=self.ceiling.mean / 100 if self.ceiling else None,
            majority=max(1 / self.setting.classes, float(private.constant_accuracy)),
        )
        self.measured: dict[float, Entry] = {}
        for epsilon in self.epsilons:
            heads = (e for at, e in entries if at == epsilon and e.private and not e.network)
            best = best_result(heads)
            if best is not None:
                self.measured[epsilon] = best

    def make_content(self, *, figure: str | None) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "backbone": self.backbone,
            "setting": self.setting,
            "unit": self.unit,
            "ceiling": self.ceiling.mean if self.ceiling else None,
            "assumed": 100 * self.scale.middle,
            "rows": [self._make_row(epsilon) for epsilon in self.epsilons],
            "figure": figure,
            "title": self.title,
        }

    def _make_row(self, epsilon: float) -> dict[str, Any]:
        at = self.setting.with_epsilon(_plannable(epsilon))
        lead = 100 * (self.scale.middle - self.scale.chance)
        entry = self.measured.get(epsilon)
        larger = 2 * at.epsilon
        few = too_few(at, floor=self.scale.floor)
        would_do = n_that_would_do(at, floor=self.scale.floor) if few else None
        return {
            "epsilon": row_words(epsilon),
            "measured": None if entry is None else entry.mean,
            "here": self._predict(at),
            "images": [self._predict(at.with_n(times * at.n)) for times in (2, 10)],
            "budget": self._predict(at.with_epsilon(larger)) if larger <= LARGEST_EPSILON else "",
            "enough": _format_count(n_to_keep(at, 1 - _POINTS / lead)),
            "too_few": few,
            "would_do": _format_count(would_do),
        }

    def _predict(self, at: Setting) -> str:
        scale = self.scale
        return format_span(predict(at).predict_accuracy(chance=scale.chance, ceiling=scale.middle))

    def draw_figure(self, has_room: Callable[[int], bool]) -> str | None:
        """Draws the figure as a data address; None if the page would become too large."""
        from dpprobe.reporting.figures.planner import plan_svg  # Matplotlib, for figures alone

        svg = plan_svg(
            self.setting,
            self.scale,
            sorted(map(_plannable, self.epsilons)),
            title=f"{self.title}: more images, more budget",
            measured={_plannable(e): entry.mean / 100 for e, entry in self.measured.items()},
        )
        return embed_picture(svg) if has_room(len(svg)) else None


def _plannable(epsilon: float) -> float:
    """Returns the epsilon that the planner knows: of a risk, for noise on all examples."""
    if not isinstance(epsilon, RiskEpsilon) or epsilon.delta is None:
        return epsilon
    return RiskEpsilon(nominal_epsilon(epsilon.token, epsilon.delta), epsilon.token, epsilon.delta)


def _format_count(n: int | None) -> str:
    return "" if n is None else f"{round_count(n):,}"
