"""The exhibits of the project, in the order of reports."""

from __future__ import annotations

from dpprobe.analysis_registry import load_analyses
from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.reporting import declarations

_DECLARED: dict[str, Exhibit] = {
    exhibit.name: exhibit for analysis in load_analyses() for exhibit in analysis.exhibits
}
# Exhibits of analyses with places of their own.
_PLACED = {
    "first figures": ("plot_tsne_grid",),
    "figures": ("plot_law", "plot_fairness", "plot_imbalance", "plot_tsne"),
    "tables": ("write_fairness_table", "write_law_tables", "write_imbalance_tables"),
}


def _list_placed(place: str) -> list[Exhibit]:
    return [_DECLARED[name] for name in _PLACED[place] if name in _DECLARED]


def _list_others() -> list[Exhibit]:
    placed = {name for names in _PLACED.values() for name in names}
    return [exhibit for name, exhibit in _DECLARED.items() if name not in placed]


EXHIBITS: tuple[Exhibit, ...] = (
    *_list_placed("first figures"),
    declarations.DATASETS,
    declarations.SHIFT,
    declarations.ACCURACY,
    declarations.TIME_COST,
    declarations.OPTION,
    declarations.COMPARISON,
    declarations.LOSS_BY_BACKBONE,
    *_list_others(),
    *_list_placed("figures"),
    declarations.DATASET_TABLE,
    *_list_placed("tables"),
    declarations.ACCURACY_TABLE,
    declarations.PAPERS,
)


def find_exhibit(name: str) -> Exhibit:
    """Returns the exhibit of a rule.

    Raises:
      KeyError: if no exhibit has the name.
    """
    return {exhibit.name: exhibit for exhibit in EXHIBITS}[name]
