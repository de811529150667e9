"""The exhibits of the project: one line for each, in the order in which reports show them."""

from __future__ import annotations

from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.reporting import declarations

EXHIBITS: tuple[Exhibit, ...] = (
    declarations.DATASETS,
    declarations.ACCURACY,
    declarations.METHODS,
    declarations.GAP,
    declarations.OPTION,
    declarations.COMPARISON,
    declarations.OVERLAP,
    declarations.DATASET_TABLE,
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
