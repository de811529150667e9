"""The names of a study's datasets in published results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpprobe.study.study import Study


def unpublished_name(dataset: str) -> str:
    """Returns a name for a dataset that no paper has, even if the study calls it like a paper's.

    The space in the name prevents a match with a published dataset's name.
    """
    return f"own {dataset}"


def published_names(study: Study) -> dict[str, str]:
    """Returns each dataset's name in published results, or an `unpublished_name`."""
    return {
        name: study.papers.datasets.get(name)
        or (None if options.subsample else options.catalog)
        or unpublished_name(name)
        for name, options in study.datasets.items()
    }


def part_names(study: Study) -> dict[str, str]:
    """Returns `published_names`, with the whole dataset's name for each subsampled dataset."""
    whole = {
        name: options.catalog or unpublished_name(name) for name, options in study.datasets.items()
    }
    return whole | study.papers.datasets


def paper_names(study: Study) -> set[str]:
    """Returns the datasets' names in published results, including names of whole datasets."""
    return {*published_names(study).values(), *part_names(study).values()}
