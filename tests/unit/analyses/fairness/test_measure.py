"""The job that compares groups in all cells, against fairlearn and pandas; and refusals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from fairlearn.metrics import MetricFrame
from sklearn.metrics import accuracy_score, recall_score, roc_auc_score

from dpprobe.analyses.fairness.fairness_record import COLUMNS, FairnessCell, FairnessRecord
from dpprobe.analyses.fairness.measure import TABLE, compare_groups
from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json, write_json
from tests.support.cell_files import write_cell, write_predictions

CELLS = (("sgd", "1"), ("sgd", "10"), ("nonprivate", "inf"))
REFERENCES = [(*cell, *CELLS[-1]) for cell in CELLS[:-1]]
FEW = {"units": 5, "positives": 2, "negatives": 3}
ROWS = 200


@dataclass
class Test:
    """Test rows, and the scores of each cell's heads on them."""

    __test__ = False

    labels: np.ndarray  # [rows], or 0 and 1 [rows, classes]
    scores: dict[str, np.ndarray]  # by epsilon, [seeds, rows, classes]
    groups: dict[str, list[str | None]]
    units: np.ndarray | None = None
    head: str = ""
    epsilons: dict[str, str] | None = None  # other epsilons than in the cells' paths

    @property
    def classes(self) -> int:
        return int(self.scores["inf"].shape[-1])

    @property
    def weights(self) -> np.ndarray:
        """Weights with which each unit counts once, regardless of its number of rows."""
        units = np.arange(len(self.labels)) if self.units is None else self.units
        shares: np.ndarray = 1 / np.bincount(units)[units]
        return shares

    def write(self, root: Path, cell: tuple[str, str]) -> Path:
        method, epsilon = cell
        several = self.labels.ndim == 2
        path = write_cell(
            root,
            method=method,
            epsilon=epsilon,
            seeds=len(self.scores[epsilon]),
            multi_label=several,
            rows=len(self.labels),
            class_names=[f"class {k}" for k in range(self.classes)],
        )
        trained = {"loss": "sigmoid"} if several and method == "sgd" else {}
        record = read_json(path) | {"options": {"head": self.head or method, **trained}}
        record["cell"]["epsilon"] = (self.epsilons or {}).get(epsilon, epsilon)
        write_json(path, record)
        units = {} if self.units is None else {"unit": self.units}
        groups = {f"group_{name}": values for name, values in self.groups.items()}
        write_predictions(
            path.with_name("predictions.parquet"),
            self.scores[epsilon],
            self.labels,
            **groups,
            **units,
        )
        return path


def drawn(kind: int, *, rows: int = ROWS, seeds: int = 2, patients: int = 0, **groups: Any) -> Test:
    """Draws rows with `kind` classes, or with -kind labels; heads are worse outside site 0."""
    generator, classes = np.random.default_rng(abs(kind)), abs(kind)
    labels: np.ndarray = generator.integers(classes, size=rows)
    target = np.eye(classes)[labels]
    if kind < 0:
        labels = target = (generator.random((rows, classes)) < 0.4).astype(np.int64)
    site = generator.integers(3, size=rows)
    scores = {}
    for _, epsilon in CELLS:
        quality = {"1": 0.6, "10": 1.2, "inf": 2.0}[epsilon] * np.where(site == 0, 1.0, 0.5)
        noise = generator.normal(size=(seeds, rows, classes))
        scores[epsilon] = np.round(noise + quality[:, None] * target, 1)
    columns: dict[str, Any] = {
        "site": [f"site {number}" for number in site],
        "sex": [("F", "M", "", None)[number % 4] for number in generator.integers(6, size=rows)],
    }
    units = None
    if patients:
        units = np.unique(generator.integers(patients, size=rows), return_inverse=True)[1]
    return Test(labels, scores, groups or columns, units=units)


def run(
    test: Test,
    root: Path,
    *,
    cells: Any = CELLS,
    references: Any = REFERENCES,
    seed: int = 3,
    **options: Any,
) -> tuple[FairnessRecord, pd.DataFrame]:
    given = {"resamples": 200, "minimum": FEW} | options
    compare_groups(
        [test.write(root, cell) for cell in cells],
        options=FairnessOptions(**given),
        references=references,
        table=root / "groups.parquet",
        record=root / "groups.json",
        seed=seed,
        threads=1,
    )
    table = pq.read_table(root / "groups.parquet")
    assert table.schema == TABLE
    assert tuple(table.column_names) == COLUMNS
    return FairnessRecord.read(root / "groups.json"), table.to_pandas()


def expected_values(test: Test, epsilon: str, column: str) -> dict[str, Any]:
    """Returns fairlearn's accuracy, recall and AUC per group, as means over heads and labels."""
    several, classes = test.labels.ndim == 2, test.classes
    names = [name or "(blank)" for name in test.groups[column]]
    weights = {"sample_weight": test.weights}
    found: dict[str, list[Any]] = {"accuracy": [], "recall": [], "auc": []}

    def frame(metric: Any, truth: np.ndarray, guess: np.ndarray) -> Any:
        return MetricFrame(
            metrics=metric,
            y_true=truth,
            y_pred=guess,
            sensitive_features=names,
            sample_params=weights,
        ).by_group

    # float32 as in files; then float64, so that differences are ranked without more rounding
    for scores in test.scores[epsilon].astype(np.float32).astype(np.float64):
        told = scores > 0 if several else np.eye(classes)[scores.argmax(axis=1)]
        truth = test.labels if several else np.eye(classes)[test.labels]
        labels = range(classes) if several or classes > 2 else [1]
        parts = [frame(recall_score, truth[:, k], told[:, k]) for k in labels]
        found["recall"].append(sum(parts) / len(parts))
        if several:
            parts = [frame(accuracy_score, truth[:, k], told[:, k]) for k in labels]
            found["accuracy"].append(sum(parts) / len(parts))
        else:
            found["accuracy"].append(frame(accuracy_score, test.labels, scores.argmax(axis=1)))
        if several or classes == 2:
            ranked = scores if several else scores - scores[:, :1]
            parts = [frame(roc_auc_score, truth[:, k], ranked[:, k]) for k in labels]
            found["auc"].append(sum(parts) / len(parts))
    return {metric: sum(heads) / len(heads) for metric, heads in found.items() if heads}


KINDS = {
    "two classes": drawn(2),
    "five classes of patients": drawn(5, patients=90, seeds=3),
    "several labels": drawn(-4, patients=120, seeds=1),
}


@pytest.fixture(scope="module")
def compared(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[FairnessRecord, pd.DataFrame]]:
    return {name: run(test, tmp_path_factory.mktemp("cells")) for name, test in KINDS.items()}


def means_of(table: pd.DataFrame, **where: Any) -> pd.Series:
    """Returns the values by group, from the rows with means over labels."""
    for name, value in {"label": "", **where}.items():
        table = table[table[name] == value]
    return table[table["left_out"].isna()].set_index("group")["value"]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("column", ["site", "sex"])
def test_values_of_groups_are_fairlearns(
    name: str, column: str, compared: dict[str, tuple[FairnessRecord, pd.DataFrame]]
) -> None:
    record, table = compared[name]
    for method, epsilon in CELLS[1:]:
        wanted = expected_values(KINDS[name], epsilon, column)
        cell = record.find_cell(method, epsilon)
        assert cell is not None
        for metric, values in wanted.items():
            found = means_of(table, epsilon=epsilon, attribute=column, metric=metric)
            assert set(found.index) == {each for each in values.index if each != "(blank)"}
            for group, value in found.items():
                assert value == pytest.approx(values[group], abs=1e-9), (epsilon, metric, group)
            gap = cell.find_gap(column, metric)
            assert gap is not None
            assert (gap.worst_group, gap.best_group) == (found.idxmin(), found.idxmax())
            assert (gap.worst, gap.best) == pytest.approx((found.min(), found.max()))
            assert gap.groups == len(found)
            assert gap.resamples == 200, "every resample has all groups and labels"


@pytest.mark.parametrize("name", KINDS)
def test_counts_equal_those_of_pandas(
    name: str, compared: dict[str, tuple[FairnessRecord, pd.DataFrame]]
) -> None:
    test, (record, table) = KINDS[name], compared[name]
    units = np.arange(ROWS) if test.units is None else test.units
    rows = pd.DataFrame({"unit": units, **test.groups}).fillna("").replace("", "(blank)")
    assert record.units == (None if test.units is None else len(np.unique(units)))
    assert (record.rows, record.multi_label) == (ROWS, test.labels.ndim == 2)
    assert record.headline == ("auc" if record.multi_label else "accuracy")
    for attribute in record.attributes:
        of_group = rows.groupby(attribute.attribute)["unit"]
        stated = {each.group: (each.rows, each.units) for each in attribute.groups}
        assert stated == {k: (part.size, part.nunique()) for k, part in of_group}
    lines = table[
        (table["attribute"] == "site") & (table["label"] != "") & (table["epsilon"] == "1")
    ]
    assert set(lines["metric"]) >= {"recall"}
    for line in lines[lines["metric"] == "recall"].itertuples():
        k = record.class_names.index(line.label)
        has = test.labels[:, k] > 0 if test.labels.ndim == 2 else test.labels == k
        inside = np.array([each == str(line.group) for each in test.groups["site"]])
        assert line.positives == len(np.unique(units[has & inside]))
        assert (line.rows, line.units) == (inside.sum(), len(np.unique(units[inside])))


@pytest.mark.parametrize("name", KINDS)
def test_differences_are_to_all_rows_and_gaps_to_the_reference(
    name: str, compared: dict[str, tuple[FairnessRecord, pd.DataFrame]]
) -> None:
    record, table = compared[name]
    everyone = {"all": ["everyone"] * ROWS}
    for cell in record.cells:
        whole = expected_values(
            Test(**{**vars(KINDS[name]), "groups": everyone}), cell.epsilon, "all"
        )
        for metric, value in whole.items():
            assert cell.overall[metric] == pytest.approx(value["everyone"], abs=1e-9)
            gap = cell.find_gap("site", metric)
            assert gap is not None
            assert gap.overall == pytest.approx(cell.overall[metric])
            mine = table[(table["epsilon"] == cell.epsilon) & (table["label"] == "")]
            mine = mine[(mine["metric"] == metric) & mine["left_out"].isna()]
            assert (mine["value"] - mine["difference"]).to_numpy() == pytest.approx(gap.overall)
            if cell.epsilon == "inf":
                assert (cell.reference, gap.difference) == (None, None)
            else:
                other = record.cells[-1].find_gap("site", metric)
                assert other is not None
                assert cell.reference is not None
                assert cell.reference.method == "nonprivate"
                assert gap.difference == pytest.approx(gap.gap - other.gap)  # type: ignore[operator]
                assert gap.difference_low <= gap.difference <= gap.difference_high  # type: ignore[operator]


def test_a_gap_is_the_mean_of_the_heads_gaps_with_their_deviation(tmp_path: Path) -> None:
    """A release publishes one head, so groups are compared per head, and then gaps are averaged."""
    test = drawn(2, seeds=3)
    gap = run(test, tmp_path)[0].cells[0].find_gap("site", "accuracy")
    assert gap is not None
    gaps = []
    for scores in test.scores["1"]:
        one = Test(**{**vars(test), "scores": {"1": scores[None], "inf": scores[None]}})
        values = expected_values(one, "1", "site")["accuracy"]
        gaps.append(values.max() - values.min())
    assert gap.gap == pytest.approx(np.mean(gaps))
    assert gap.std == pytest.approx(np.std(gaps, ddof=1))
    alone = run(drawn(2, seeds=1), tmp_path / "alone")[0].cells[0].find_gap("site", "accuracy")
    assert alone is not None
    assert alone.std is None


def comparable(cell: FairnessCell) -> dict[str, Any]:
    return cell.model_dump(mode="json")


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_cells_in_another_order_have_the_same_numbers_in_that_order(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    usual, table = run(KINDS["two classes"], tmp_path / "a")
    cells = [CELLS[place] for place in order]
    other, shuffled = run(KINDS["two classes"], tmp_path / "b", cells=cells)
    assert [(cell.method, cell.epsilon) for cell in other.cells] == cells
    for place, cell in zip(order, other.cells, strict=True):
        assert comparable(cell) == comparable(usual.cells[place])
    assert [*dict.fromkeys(shuffled["epsilon"])] == [epsilon for _, epsilon in cells]
    for _, epsilon in cells:
        mine, theirs = (
            part[part["epsilon"] == epsilon].reset_index(drop=True) for part in (table, shuffled)
        )
        pd.testing.assert_frame_equal(mine, theirs)


def test_options_are_recorded_and_a_lower_confidence_narrows_intervals(tmp_path: Path) -> None:
    wide, narrow = (
        run(KINDS["two classes"], tmp_path / f"{level}", confidence=level, resamples=300)[0]
        for level in (0.95, 0.8)
    )
    assert (wide.confidence, narrow.confidence, wide.resamples) == (0.95, 0.8, 300)
    assert wide.minimum.model_dump() == FEW
    assert (wide.dataset, wide.backbone) == ("digits", "pixels")
    assert wide.class_names == ("class 0", "class 1")
    for metric in ("accuracy", "auc", "calibration_error"):
        one, other = (each.cells[0].find_gap("site", metric) for each in (wide, narrow))
        assert one is not None
        assert other is not None
        assert one.gap == other.gap
        assert one.low <= other.low <= other.high < one.high  # type: ignore[operator]


def test_scores_that_are_not_logits_have_no_calibration_error(tmp_path: Path) -> None:
    test = Test(**{**vars(KINDS["two classes"]), "head": "least_squares"})
    record, table = run(test, tmp_path)
    metrics = {"auc", "accuracy", "recall", "equalised_odds", "demographic_parity"}
    for cell in record.cells:
        assert cell.attributes[0].gaps.keys() == metrics
        assert "calibration_error" not in cell.overall
    assert "calibration_error" not in set(table["metric"])


def test_a_budget_given_as_a_risk_has_its_cell_s_epsilon(tmp_path: Path) -> None:
    test = Test(**{**vars(KINDS["two classes"]), "epsilons": {"1": "advantage-0.1"}})
    references = [("sgd", "advantage-0.1", "nonprivate", "inf")]
    record, _ = run(test, tmp_path, references=references)
    risk, plain, ceiling = record.cells
    # the realised epsilon of made-up cells is 0.996 times the epsilon in their path
    assert risk.epsilon_at_delta == pytest.approx(0.996)
    assert risk.reference is not None
    assert (plain.epsilon_at_delta, ceiling.epsilon_at_delta) == (None, None)
    assert plain.reference is None
    assert [cell.private for cell in record.cells] == [True, True, False]


# Compared groups


def test_small_and_blank_groups_are_listed_and_not_compared(tmp_path: Path) -> None:
    names = ["big"] * 100 + ["other"] * 90 + ["few"] * 4 + [None] * 6
    record, table = run(drawn(2, site=names), tmp_path)
    (site,) = record.attributes
    assert [(each.group, each.rows, each.left_out) for each in site.groups] == [
        ("big", 100, None),
        ("few", 4, "4 rows, 5 needed"),
        ("other", 90, None),
        ("(blank)", 6, "no group is named"),
    ]
    lines = table[(table["epsilon"] == "1") & (table["metric"] == "accuracy")]
    assert [*lines["group"]] == ["big", "other", "few", "(blank)"]
    reasons = ["", "", "4 rows, 5 needed", "no group is named"]
    assert lines["left_out"].fillna("").tolist() == reasons
    assert lines["value"].isna().tolist() == [False, False, True, True]
    assert [*lines["rows"]] == [100, 90, 4, 6]


@pytest.mark.parametrize("units", [101, 500])
def test_fewer_than_two_groups_have_values_and_no_gap(units: int, tmp_path: Path) -> None:
    names = ["big"] * 110 + ["other"] * 90
    record, table = run(drawn(2, site=names), tmp_path, minimum=FEW | {"units": units})
    gap = record.cells[0].find_gap("site", "accuracy")
    assert gap is not None
    kept = 1 if units == 101 else 0
    assert (gap.groups, gap.gap, gap.low, gap.worst_group) == (kept, None, None, None)
    assert not gap.is_apart
    assert table["value"].notna().any() == (kept == 1)


def test_pairs_of_columns_are_groups_of_their_own_in_the_order_of_names(tmp_path: Path) -> None:
    test = KINDS["two classes"]
    pairs = (("sex", "group_site"), ("race", "sex"), ("site", "sex"))
    record, _ = run(test, tmp_path, pairs=pairs)
    assert [each.attribute for each in record.attributes] == [
        "site",
        "sex",
        "sex x site",
        "site x sex",
    ]
    listed = [each.group for each in record.attributes[2].groups]
    assert listed == [f"{sex} x site {k}" for sex in "FM" for k in range(3)] + ["(blank)"]
    for each in record.attributes[2].groups[:-1]:
        inside = [
            f"{a} x {b}" == each.group
            for a, b in zip(test.groups["sex"], test.groups["site"], strict=True)
        ]
        assert each.rows == sum(inside)


def test_classes_as_groups_have_an_accuracy_and_no_recall_by_group(tmp_path: Path) -> None:
    test = KINDS["five classes of patients"]
    record, table = run(test, tmp_path, groups=("class",))
    (attribute,) = record.attributes
    assert (attribute.attribute, len(attribute.groups)) == ("class", 5)
    assert record.cells[0].attributes[0].gaps.keys() == {"accuracy", "calibration_error"}
    found = means_of(table, epsilon="1", metric="accuracy")
    for k in range(5):
        inside = test.labels == k
        wanted = [
            np.average(scores.argmax(axis=1)[inside] == k, weights=test.weights[inside])
            for scores in test.scores["1"].astype(np.float32)
        ]
        assert found[f"class {k}"] == pytest.approx(np.mean(wanted))


def test_without_group_columns_the_classes_or_labels_are_the_groups(tmp_path: Path) -> None:
    test = drawn(-3, seeds=1)
    test.groups = {}
    record, table = run(test, tmp_path)
    (attribute,) = record.attributes
    assert [each.group for each in attribute.groups] == ["class 0", "class 1", "class 2"]
    assert {each.rows for each in attribute.groups} == {ROWS}, "each row is in all groups"
    gaps = record.cells[0].attributes[0].gaps
    assert gaps.keys() == {"auc", "accuracy", "recall"}
    assert all(gap.chance_gap is None for gap in gaps.values()), "rows cannot be exchanged"
    for metric, of in (("auc", roc_auc_score), ("recall", recall_score)):
        found = means_of(table, epsilon="1", metric=metric)
        scores = test.scores["1"][0].astype(np.float32)
        for k in range(3):
            guess = scores[:, k] if metric == "auc" else scores[:, k] > 0
            assert found[f"class {k}"] == pytest.approx(of(test.labels[:, k], guess))


# Refusals


def test_groups_that_no_row_has_are_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no group column race; choose from class, sex, site"):
        run(KINDS["two classes"], tmp_path, groups=("race",))


def test_an_error_names_the_file_with_a_nonfinite_score(tmp_path: Path) -> None:
    test = drawn(2)
    test.scores["10"][0, 7, 1] = np.inf
    with pytest.raises(DataError, match=r"eps-10/predictions.parquet: a score is not finite"):
        run(test, tmp_path)
    assert not (tmp_path / "groups.json").exists()


def test_cells_that_were_tested_on_other_rows_are_refused_by_their_file(tmp_path: Path) -> None:
    test = drawn(2)
    paths = [test.write(tmp_path, cell) for cell in CELLS]
    predictions = paths[1].with_name("predictions.parquet")
    write_predictions(predictions, test.scores["10"], test.labels[::-1])
    with pytest.raises(DataError, match=r"eps-10/predictions.parquet: the test rows differ"):
        compare_groups(
            paths,
            options=FairnessOptions(),
            references=[],
            table=tmp_path / "groups.parquet",
            record=tmp_path / "groups.json",
            seed=1,
            threads=1,
        )
