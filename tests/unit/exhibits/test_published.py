"""Published numbers: as the papers print them, each with its source."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpprobe.exhibits import published
from dpprobe.study.study_file import load_study
from tests.support.small_study import changed


def test_every_number_has_a_source() -> None:
    found = published.read_published()
    assert len(found.numbers) > 150
    for number in found.numbers:
        assert number.paper in found.citations
        assert number.citation in found.citations
        assert number.table
        assert number.row
        assert number.dataset or number.metric == "dimension"
    for citation in found.citations.values():
        assert citation.note or None not in (citation.title, citation.year, citation.venue)


def test_rows_are_unique_and_have_values_of_columns_alone() -> None:
    for table in published.read_published().tables:
        names = [row.row for row in table.rows]
        assert len(set(names)) == len(names)
        for row in table.rows:
            inferred = {key for keys in row.inferred.values() for key in keys}
            assert row.values.keys() | inferred <= table.columns.keys(), row.row


def test_the_parts_of_a_result_agree() -> None:
    """Accuracies are percent and AUCs fractions; without privacy there is no delta."""
    for number in published.read_published().numbers:
        if math.isnan(number.value):
            assert number.printed == "random chance"
        elif number.metric == "accuracy":
            assert 1 < number.value < 100, number
        elif number.metric == "auc":
            assert 0.5 < number.value < 1, number
        if number.epsilon == math.inf:
            assert number.delta is None
        if number.metric in ("accuracy", "auc"):
            assert number.epsilon is not None, number


@pytest.mark.parametrize(
    ("name", "dataset", "papers", "shown"),
    [
        ("lesions", {}, {}, set()),
        ("lesions", {}, {"datasets": {"lesions": "cifar10"}}, {"cifar10"}),
        ("lesions", {}, {"datasets": {"lesions": "nobody_published_it"}}, set()),
        ("lesions", {"catalog": "cifar10"}, {}, {"cifar10"}),
        # a hospital's own images, which happen to have a published name
        ("cifar10", {}, {}, set()),
        ("chest_xray", {}, {}, set()),
        ("chexpert", {}, {}, set()),
    ],
)
def test_the_papers_tables_are_of_studies_with_a_dataset_of_theirs(
    name: str, dataset: dict[str, Any], papers: dict[str, Any], shown: set[str]
) -> None:
    study = changed("papers", papers)
    study["datasets"] = {name: dataset or study["datasets"]["digits"]}
    assert load_study(study).paper_names() & published.published_datasets() == shown
