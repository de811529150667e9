"""Published numbers: as the papers print them, each with its source."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpprobe.exhibits import published
from dpprobe.study.study_file import load_study
from tests.support.small_study import changed

FOUNDATION, MEHTA = "foundation_features", "mehta_2022"
BERRADA, LAW = "berrada_2023", "representation_law"


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


def test_points_are_private_single_and_told_once() -> None:
    found = published.read_published()
    points = found.mark_points("cifar10", "accuracy")
    assert {point.value for point in points} == {
        73.3, 49.7, 94.0, 92.7, 55.0, 67.0, 69.3, 44.3, 66.2, 53.0,
    }  # fmt: skip
    assert len(points) == 11, "67.0 at 3 stands in two tables, and another 67.0 is at 2"
    assert not found.mark_points("chexpert", "auc"), "of tuned networks alone"
    assert all(
        point.epsilon_range is not None for point in found.mark_points("plantdisease", "accuracy")
    )
    imagenet = found.mark_points("imagenet", "accuracy")
    assert {point.epsilon for point in imagenet} == {0.1, 1, 8, 10, (4, 10)}
    ours = [point for point in imagenet if point.citation == "mehta_2022"]
    assert all(point.tuning == "last layer" for point in ours)
    models = {point.model: point.value for point in ours}
    assert len(models) == len(ours), "the best of a model alone, not its sweep"
    assert (models["ViT-B/16"], models["ResNet152x4 (BiT)"]) == (70.6, 72.9)
    mnist = [p.value for p in found.mark_points("mnist", "accuracy") if p.single_epsilon == 2.93]
    assert sorted(mnist) == [98.1, 98.7, 98.7], "two results of one work may be equal"


def test_a_range_of_epsilons_is_a_point_that_covers_smaller_ones_within() -> None:
    found = published.read_published()
    models = [p for p in found.mark_points("imagenet", "accuracy") if p.model == "ViT-H/14-4B"]
    assert [(p.epsilon, p.value) for p in models] == [((4, 10), 81.7)], "not 81.4 at 10 as well"
    (eurosat,) = (p for p in found.mark_points("eurosat", "accuracy") if p.column == "cnn")
    assert (eurosat.epsilon_range, eurosat.value) == ((0.5, 1.5), 90.1)


def test_published_networks_are_points_beside_tuned_networks_alone() -> None:
    found = published.read_published()
    (private,) = found.mark_points("chexpert", "auc", networks=True)
    assert (private.value, private.single_epsilon) == (0.8924, 8)


def test_the_bibliography_has_every_citation() -> None:
    found = published.read_published()
    text = published.write_bibliography(found)
    for key, citation in found.citations.items():
        assert f"@misc{{{key}," in text
        assert citation.authors.split(", ")[0] in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("name", "dataset", "papers", "shown"),
    [
        ("lesions", {}, {}, set()),
        ("lesions", {}, {"datasets": {"lesions": "cifar10"}}, {"cifar10"}),
        ("lesions", {}, {"datasets": {"lesions": "nobody_published_it"}}, set()),
        ("lesions", {"catalog": "cifar10"}, {}, {"cifar10"}),
        ("cifar10", {}, {}, {"cifar10"}),
    ],
)
def test_the_papers_tables_are_of_studies_with_a_dataset_of_theirs(
    name: str, dataset: dict[str, Any], papers: dict[str, Any], shown: set[str]
) -> None:
    study = changed("papers", papers)
    study["datasets"] = {name: dataset or study["datasets"]["digits"]}
    assert load_study(study).paper_names() & published.published_datasets() == shown
