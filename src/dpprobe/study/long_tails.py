"""The datasets whose long tails a study measures, and the reasons why it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from dpprobe.errors import DpprobeError
from dpprobe.study.study import Study


def long_tail_datasets(study: Study) -> list[str]:
    """Returns the datasets whose long tails a study measures; none without `long_tail`."""
    if study.long_tail is None:
        return []
    chosen = study.long_tail.datasets
    if chosen is not None:
        return [name for name in study.datasets if name in chosen]
    return [name for name in study.datasets if not _multi_label(study, name)]


def long_tail_faults(study: Study) -> Iterator[str]:
    """Yields what is wrong with the long tails of a study, a line each."""
    if study.long_tail is None:
        return
    chosen = study.long_tail.datasets or ()
    for name in dict.fromkeys(chosen):
        if name not in study.datasets:
            known = ", ".join(study.datasets)
            yield f"datasets: {name} is not in this study; write some of {known}"
        elif chosen.count(name) > 1:
            yield f"datasets: {name} stands twice; remove one"
        elif _multi_label(study, name):
            yield f"datasets: {name}: its rows have several labels, and sub-classes are of one"
    if not chosen and not long_tail_datasets(study):
        yield "the rows of all datasets have several labels, and sub-classes are of one; remove it"


def _multi_label(study: Study, dataset: str) -> bool:
    """Returns True for rows of several labels; False also for a source with a fault of its own."""
    with suppress(DpprobeError):
        return study.datasets[dataset].multi_label()
    return False
