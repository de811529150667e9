"""The exhibits (figures and tables) of the project, in the order of reports."""

from __future__ import annotations

from dpprobe.analysis_registry import load_analyses
from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.reporting import declarations

_DECLARED: dict[str, Exhibit] = {
    exhibit.name: exhibit for analysis in load_analyses() for exhibit in analysis.exhibits
}
# Exhibits of analyses with fixed positions: the first figure, the last figures, and tables.
_TABLES = ("write_fairness_table", "write_law_tables", "write_imbalance_tables")
_LAST_FIGURES = ("plot_law", "plot_fairness", "plot_imbalance", "plot_tsne")
_PLACED = ("plot_tsne_grid", *_LAST_FIGURES, *_TABLES)


def _pick(*names: str) -> list[Exhibit]:
    return [_DECLARED[name] for name in names if name in _DECLARED]


EXHIBITS: tuple[Exhibit, ...] = (
    *_pick("plot_tsne_grid"),
    declarations.DATASETS,
    declarations.SHIFT,
    declarations.ACCURACY,
    declarations.TIME_COST,
    declarations.OPTION,
    declarations.COMPARISON,
    declarations.LOSS_BY_BACKBONE,
    *(exhibit for name, exhibit in _DECLARED.items() if name not in _PLACED),
    *_pick(*_LAST_FIGURES),
    declarations.DATASET_TABLE,
    *_pick(*_TABLES),
    declarations.ACCURACY_TABLE,
    declarations.PAPERS,
)


def find_exhibit(name: str) -> Exhibit:
    """Returns the exhibit that a rule makes; raises KeyError if no exhibit has the name."""
    return {exhibit.name: exhibit for exhibit in EXHIBITS}[name]
