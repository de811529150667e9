"""The exhibits (figures and tables) of the project, in the order of reports."""

from __future__ import annotations

from dpprobe.analysis_registry import load_analyses
from dpprobe.exhibits.exhibit import Exhibit
from dpprobe.reporting.declarations import STUDY_EXHIBITS

EXHIBITS: tuple[Exhibit, ...] = tuple(
    sorted(
        [*STUDY_EXHIBITS, *(each for analysis in load_analyses() for each in analysis.exhibits)],
        key=lambda exhibit: exhibit.order,
    )
)


def find_exhibit(name: str) -> Exhibit:
    """Returns the exhibit of a rule by its name; raises KeyError for an unknown name."""
    return {exhibit.name: exhibit for exhibit in EXHIBITS}[name]
