"""The report's section on the gain from more images or a larger budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpprobe.data.table import DatasetInfo
from dpprobe.exhibits.html_page import embed_picture
from dpprobe.planner.accuracy_plan import make_scale
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.plan_text import format_span, round_count
from dpprobe.planner.predicted_accuracy import Setting, Start, n_to_keep, predict
from dpprobe.privacy.limits import LARGEST_EPSILON, SMALLEST_EPSILON
from dpprobe.privacy.risk import RiskEpsilon, nominal_epsilon, row_words
from dpprobe.results.best_private import best_ceiling, from_one
from dpprobe.results.summary import Grid

_POINTS = 2  # points of loss, for which the table gives the number of units


def plan_parts(
    grid: Grid, summary: Any, infos: Mapping[str, DatasetInfo], *, has_room: Callable[[int], bool]
) -> list[dict[str, Any]]:
    """Makes one part per dataset and backbone with a non-private baseline and private cells.

    Predictions start from the best measured head of each epsilon. Only datasets whose metric is
    accuracy have parts, and only backbones whose non-private baseline beats the majority class. If
    measured heads are outside the predicted range, the part has no predictions. Each dataset has a
    figure of the backbone with the best non-private baseline, if `has_room` returns True.
    """
    parts = []
    for dataset, measure in grid.measures.items():
        if not measure.is_accuracy:
            continue
        made = [
            _Part(grid, summary, infos[dataset], dataset, backbone)
            for backbone in dict.fromkeys(name for name, _ in grid.columns)
            if _list_epsilons(grid, dataset, backbone)
        ]
        mine = [part for part in made if part.scale.given]
        fitting = (part for part in mine if not part.misfit)
        drawn = max(fitting, key=lambda part: part.scale.middle, default=None)
        parts += [
            part.make_content(figure=part.draw_figure(has_room) if part is drawn else None)
            for part in mine
        ]
    return parts


def unplanned_words(grid: Grid, dataset: str) -> str:
    measure = grid.measures[dataset]
    if measure.is_accuracy:
        return (
            "not predicted: needs a private linear head, and on the same backbone a non-private "
            "baseline above the majority-class baseline"
        )
    words = (
        "not predicted: public learning curves are of accuracy with one label per image, not of "
    )
    if measure.multi_label:
        return f"{words}{measure.title}"
    return f"{words}{measure.title}; `dpprobe plan` predicts accuracy at any n and ε"


def plan_origin() -> dict[str, Any]:
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
        entries = [
            (epsilon, entry)
            for (of, epsilon, name, _), entry in grid.entries.items()
            if (of, name) == (dataset, backbone)
        ]
        self.measured: dict[float, float] = {}  # accuracy of the best private head by epsilon
        for epsilon in _list_epsilons(grid, dataset, backbone):
            heads = [e.mean for at, e in entries if at == epsilon and e.private and not e.network]
            self.measured[epsilon] = max(heads) / 100
        self.setting = Setting(
            n=int(private.n),
            classes=int(private.num_classes),
            dimension=int(private.dimension),
            epsilon=_plannable(min(self.measured, key=from_one)),
            delta=float(private.delta),
        )
        patients = (info.units or {}).get("train")
        # A summary does not name the unit of privacy; with one image per patient, both counts are
        # equal.
        by_patient = self.setting.n == patients != info.train_rows
        self.unit = "patient" if by_patient else "image"
        self.ceiling = best_ceiling(entry for _, entry in entries)
        self.scale = make_scale(
            self.setting.classes,
            ceiling=self.ceiling.mean / 100 if self.ceiling else None,
            majority=max(1 / self.setting.classes, float(private.constant_accuracy)),
        )
        self.starts: dict[float, Start] = {}
        self.misfit = ""
        for epsilon, accuracy in self.measured.items():
            at = self._setting_at(epsilon)
            if start := Start.of_measured(at, self.scale.share_of(accuracy)):
                self.starts[epsilon] = start
            elif not self.misfit:
                self.misfit = (
                    f"public learning curves do not fit this dataset: at ε = {row_words(epsilon)} "
                    f"they predict {self._predict(at, None)}, but {100 * accuracy:.1f}% was "
                    "measured"
                )

    def _setting_at(self, epsilon: float) -> Setting:
        return self.setting.with_epsilon(_plannable(epsilon))

    def make_content(self, *, figure: str | None) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "backbone": self.backbone,
            "setting": self.setting,
            "unit": self.unit,
            "ceiling": 100 * self.scale.middle,
            "misfit": self.misfit,
            "rows": [] if self.misfit else list(map(self._make_row, self.starts)),
            "figure": figure,
            "title": self.title,
        }

    def _make_row(self, epsilon: float) -> dict[str, Any]:
        at, start = self._setting_at(epsilon), self.starts[epsilon]
        lead, larger = 100 * (self.scale.middle - self.scale.chance), 2 * at.epsilon
        enough = n_to_keep(at, 1 - _POINTS / lead, start=start)
        budget = larger <= LARGEST_EPSILON
        return {
            "epsilon": row_words(epsilon),
            "measured": 100 * self.measured[epsilon],
            "here": self._predict(at, None),
            "images": [self._predict(at.with_n(times * at.n), start) for times in (2, 10)],
            "budget": self._predict(at.with_epsilon(larger), start) if budget else "",
            "enough": "" if enough is None else f"{round_count(enough):,}",
        }

    def _predict(self, at: Setting, start: Start | None) -> str:
        kept, scale = predict(at, start=start), self.scale
        return format_span(kept.predict_accuracy(chance=scale.chance, ceiling=scale.middle))

    def draw_figure(self, has_room: Callable[[int], bool]) -> str | None:
        """Draws the figure as a data URL; None if the page would become too large."""
        from dpprobe.reporting.figures.planner import plan_svg  # imports Matplotlib

        svg = plan_svg(
            self.setting,
            self.scale,
            list(self.starts.values()),
            title=f"{self.title}: more {self.unit}s, more budget",
            unit=self.unit,
        )
        return embed_picture(svg) if has_room(len(svg)) else None


def _plannable(epsilon: float) -> float:
    """Returns the epsilon to plan for; for a permitted risk, its epsilon without sampling."""
    if not isinstance(epsilon, RiskEpsilon) or epsilon.delta is None:
        return epsilon
    return RiskEpsilon(nominal_epsilon(epsilon.token, epsilon.delta), epsilon.token, epsilon.delta)
