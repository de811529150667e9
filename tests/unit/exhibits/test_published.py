"""Published numbers are as printed in the papers, each with its source."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpprobe.exhibits import published
from dpprobe.study.published_names import paper_names
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


def test_rows_are_unique_and_have_values_only_of_columns() -> None:
    for table in published.read_published().tables:
        names = [row.row for row in table.rows]
        assert len(set(names)) == len(names)
        for row in table.rows:
            inferred = {key for keys in row.inferred.values() for key in keys}
            assert row.values.keys() | inferred <= table.columns.keys(), row.row


def test_the_parts_of_a_result_agree() -> None:
    """Accuracies are percentages and AUCs fractions; without privacy there is no delta."""
    for number in published.read_published().numbers:
        if math.isnan(number.value):
            assert number.printed == "random chance"
        elif number.metric == "accuracy":
            assert 1 < number.value < 100, number
        elif number.metric == "auc":  # without training, a score may be worse than guessing
            assert (0.5 if number.epsilon else 0.45) < number.value < 1, number
        if number.epsilon in (0, math.inf):
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
        # a hospital's own images, whose dataset happens to have a published name
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
    assert paper_names(load_study(study)) & published.published_datasets() == shown


def test_a_range_of_epsilons_is_a_point_that_covers_smaller_ones_within() -> None:
    found = published.read_published()
    models = [p for p in found.mark_points("imagenet", "accuracy") if p.model == "ViT-H/14-4B"]
    assert [(p.epsilon, p.value) for p in models] == [((4, 10), 81.7)], "not 81.4 at 10 as well"
    (eurosat,) = (p for p in found.mark_points("eurosat", "accuracy") if p.column == "cnn")
    assert (eurosat.epsilon_range, eurosat.value) == ((0.5, 1.5), 90.1)


def test_the_bibliography_has_every_citation() -> None:
    found = published.read_published()
    text = published.write_bibliography(found)
    for key, citation in found.citations.items():
        assert f"@misc{{{key}," in text
        assert citation.authors.split(", ")[0] in text
    assert text.count("{") == text.count("}")


BOARD = "private_ml_leaderboard"


def test_the_leaderboard_repeats_what_papers_print() -> None:
    """Results in two sources are equal, up to the leaderboard's rounding."""
    found = published.read_published()
    twice = 0
    for number in found.select_numbers(paper=BOARD):
        same = [
            other
            for other in found.numbers
            if other.paper != BOARD
            and (other.citation, other.dataset) == (number.citation, number.dataset)
            and (other.epsilon, other.metric) == (number.epsilon, number.metric)
            and other.model_or_column == number.model_or_column
        ]
        for other in same:
            assert round(number.percent, 1) == round(other.percent, 1), (number, other)
        twice += bool(same)
    assert twice == 4  # Tramèr and Boneh (two), De et al. at epsilon 2, Berrada et al. at 8


WORK = {"short": "A", "authors": "Ann, Bob", "title": "On", "year": 2020, "venue": "V"}


def _published(*rows: dict[str, Any], **table: Any) -> published.Published:
    """Returns a table of accuracies: column `y` at epsilon 8, and column `x` at 0.5 to 2."""
    columns = {"y": {"title": "Y"}, "x": {"title": "Accuracy", "epsilon": [0.5, 2.0]}}
    facts = {"title": "t", "metric": "accuracy", "dataset": "d", "epsilon": 8.0}
    named = [{"row": str(number)} | row for number, row in enumerate(rows)]
    made = facts | table | {"paper": "a", "table": "1", "columns": columns, "rows": named}
    return published.Published.model_validate(
        {"citations": {"b": WORK | {"title": None, "note": "n"}, "a": WORK}, "tables": [made]}
    )


def test_of_a_models_results_at_one_epsilon_the_best_is_marked_and_by_rising_epsilon() -> None:
    model = {"model": "m"}
    found = _published(
        {"values": {"y": 70.0}},
        {"values": {"y": 75.0}},  # the best at 8
        {"values": {"y": 75.0}},  # equally good: the first one counts
        {"values": {"y": 72.0}, "model": "another"},  # also at 8
        {"values": {"y": 50.0}, "epsilon": 2.0} | model,  # the range gives its model 60
        {"values": {"y": 55.0}, "epsilon": 2.5} | model,  # outside the range
        {"values": {"x": 60.0}} | model,
        {"values": {"y": 61.0}, "epsilon": 0.5} | model,  # better than the range
        {"values": {"y": 99.0}, "epsilon": 1.0, "train_rows": 10},
        {"values": {"y": "random chance"}, "epsilon": 1.0},
        {"values": {"y": 98.0}, "epsilon": 1.0, "tuning": "full"},
        {"values": {"y": 97.0}, "epsilon": math.inf},
        {"values": {"y": 96.0}, "dataset": "other"},
        {"values": {"y": 40.0}, "epsilon": [1.0, 3.0]} | model,  # a range with a higher end
        {"values": {"y": 59.0}, "epsilon": 2.0, "model": "another"},
    )
    marked = [(number.row, number.value) for number in found.mark_points("d", "accuracy")]
    assert marked == [
        ("7", 61.0),
        ("6", 60.0),
        ("13", 40.0),
        ("14", 59.0),
        ("5", 55.0),
        ("1", 75.0),
        ("3", 72.0),
    ]
    with_networks = found.mark_points("d", "accuracy", networks=True)
    assert [number.row for number in with_networks] == ["7", "6", "10", "13", "14", "5", "1", "3"]
    assert found.mark_points("d", "auc") == []
