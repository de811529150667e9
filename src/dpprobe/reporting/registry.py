"""The exhibits of the project: one line for each, in the order in which reports show them."""

from __future__ import annotations

from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.reporting import declarations

EXHIBITS: tuple[Exhibit, ...] = (
    declarations.TSNE_GRID,
    declarations.DATASETS,
    declarations.ACCURACY,
    declarations.METHODS,
    declarations.GAP,
    declarations.OPTION,
    declarations.COMPARISON,
    declarations.AUDIT,
    declarations.MEMBERSHIP,
    declarations.LAW_FIGURES,
    declarations.FAIRNESS_FIGURES,
    declarations.IMBALANCE_FIGURES,
    declarations.TSNE,
    declarations.OVERLAP,
    declarations.TSNE_PAGE,
    declarations.DATASET_TABLE,
    declarations.FAIRNESS_TABLE,
    declarations.LAW_TABLE_FILES,
    declarations.IMBALANCE_TABLES,
    declarations.ACCURACY_TABLE,
    declarations.PAPERS,
    declarations.COSTLY_IMAGES,
)


def find_exhibit(name: str) -> Exhibit:
    """Returns the exhibit of a rule.

    Raises:
      KeyError: if no exhibit has the name.
    """
    return {exhibit.name: exhibit for exhibit in EXHIBITS}[name]
