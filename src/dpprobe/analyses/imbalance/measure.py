"""The rare-class job: compares all cells of a dataset and its copies on one backbone.

Not private: recalls come from test labels, and reference heads from training examples, without
noise. As in the open questions of Berrada et al. 2023 (docs/references.md), n_c is the number of
training examples of the rare class. A cell's retained recall rho is the recall of the class divided
by its recall with a non-private head trained on the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from dpprobe.analyses.imbalance.imbalance_record import (
    BreakDown,
    Estimate,
    ImbalanceRecord,
    RareCell,
    TrainingSet,
)
from dpprobe.data.table import read_info
from dpprobe.errors import DataError
from dpprobe.files.records import locate_record
from dpprobe.heads.registry import method_options
from dpprobe.privacy.limits import INFINITE, epsilon_value
from dpprobe.privacy.risk import find_risk
from dpprobe.progress import Progress
from dpprobe.results.bootstrap import CONFIDENCE
from dpprobe.results.cell_files import METRICS_FILE, PREDICTIONS_FILE
from dpprobe.results.cell_record import CellName, CellRecord, check_file, read_cell
from dpprobe.results.cell_results import compare_means
from dpprobe.results.intervals import wilson_interval
from dpprobe.results.metrics import SAME, Link
from dpprobe.results.unit_counts import row_weights

logger = logging.getLogger("dpprobe")

# A reference that has learnt a class has at least this recall.
_LEAST_REFERENCE = 0.1


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A cell and its results on each class that is made rare, by the class's index.

    Attributes:
      recall: the class's recall for each seed.
      auc: the class's AUC for each seed; None if no or every test example has the class.
      never: for each seed, True if the head never predicts the class.
      counted: the numbers of independent test units behind a recall, and behind an AUC.
    """

    record: CellRecord
    recall: Mapping[int, np.ndarray]
    auc: Mapping[int, np.ndarray | None]
    never: Mapping[int, np.ndarray]
    counted: Mapping[int, tuple[int, int]]


def compare_rare_classes(
    names: Sequence[CellName],
    *,
    cells: Path,
    infos: Mapping[str, Path],
    dataset: str,
    backbone: str,
    classes: Sequence[str],
    folder: Path,
) -> None:
    """Compares all cells of a dataset and its copies, and writes the record.

    Args:
      names: the cells on the backbone, in the folder `cells`.
      infos: paths of dataset.json by dataset name: first the complete dataset, then its copies.

    Raises:
      DataError: if a class is unknown, rows have several labels, or files are missing or damaged.
    """
    info = read_info(infos[dataset])
    for name in classes:
        if name not in info.class_names:
            raise DataError(
                f"imbalance.classes: {name!r} is not a class of {dataset}; choose from "
                f"{', '.join(info.class_names[:10])}"
            )
    sets = {name: _training_set(name, path, info.class_names) for name, path in infos.items()}
    tested = {}
    with Progress(len(names), label=f"rare classes of {dataset}, {backbone}") as progress:
        for name, training_set in sets.items():
            rare = training_set.class_name
            looked_at = classes if rare is None else [rare]
            for cell in (each for each in names if each.dataset == name):
                key = name, cell.method, cell.epsilon
                tested[key] = _test_cell(cell.folder(cells), looked_at)
                progress.advance_by(1)
    made = [each for key in tested for each in _list_cells(key, tested, sets, info.class_names)]
    methods = list(dict.fromkeys(each.method for each in made if each.private))
    record = ImbalanceRecord(
        dataset=dataset,
        backbone=backbone,
        class_names=info.class_names,
        classes=tuple(classes),
        training_sets=tuple(sets.values()),
        cells=tuple(made),
        break_downs=tuple(
            break_down(made, class_name=name, method=method)
            for name in classes
            for method in methods
        ),
    )
    record.write(locate_record(folder, dataset, backbone))


def _training_set(name: str, dataset_json: Path, class_names: Sequence[str]) -> TrainingSet:
    """Describes the training examples of a dataset, from its dataset.json."""
    info = read_info(dataset_json)
    if info.class_names != tuple(class_names) or info.multi_label:
        raise DataError(
            f"{dataset_json}: classes differ from the complete dataset's, or rows have several "
            "labels; run again"
        )
    part = (info.source.get("subsample") or {}).get("fractions") or {}
    ((rare, fraction),) = part.items() or ((None, 1.0),)
    return TrainingSet(
        name=name,
        class_name=rare,
        fraction=fraction,
        rows=info.train_rows,
        per_class=info.splits["train"].per_class,
    )


def _test_cell(folder: Path, classes: Sequence[str]) -> Tested:
    """Reads a cell and its predictions, and measures recall and AUC of some classes."""
    from sklearn.metrics import roc_auc_score

    record = read_cell(folder / METRICS_FILE)
    class_names = record.class_names
    table = pq.read_table(check_file(folder / PREDICTIONS_FILE))
    seeds, rows = len(record.seeds), record.rows.test
    shape = (seeds, rows, len(class_names))
    scores = table["scores"].combine_chunks().flatten().to_numpy().reshape(shape)
    labels = table["label"].to_numpy()[:rows]
    units = table["unit"].to_numpy()[:rows] if "unit" in table.column_names else np.arange(rows)
    weights = row_weights(units)
    link = method_options(record.options).link_on(False)
    recall, never, counted = {}, {}, {}
    auc: dict[int, np.ndarray | None] = {}
    for name in classes:
        k = class_names.index(name)
        positive = labels == k
        recall[k] = np.array([s["per_class_recall"][k] for s in record.seeds], dtype=np.float64)
        never[k] = ~(scores.argmax(axis=2) == k).any(axis=1)
        sides = len(np.unique(units[positive])), len(np.unique(units[~positive]))
        counted[k] = sides[0], min(sides)
        auc[k] = None
        if min(sides):
            ranks = [one_against_rest(each, k, link) for each in scores]
            auc[k] = np.array(
                [roc_auc_score(positive, each, sample_weight=weights) for each in ranks]
            )
    return Tested(record=record, recall=recall, auc=auc, never=never, counted=counted)


def one_against_rest(scores: np.ndarray, k: int, link: Link) -> np.ndarray:
    """Returns class k's score of rows [n, K]: log odds, or the lead over the best other class.

    The lead over other classes cancels a term that all scores of a row share.
    """
    chosen = scores[:, k].astype(np.float64)
    if link == "sigmoid":
        return chosen
    others = np.delete(scores, k, axis=1).astype(np.float64)
    rest = np.logaddexp.reduce(others, axis=1) if link == "softmax" else others.max(axis=1)
    return np.asarray(chosen - rest)


def _list_cells(
    key: tuple[str, str, str],
    tested: Mapping[tuple[str, str, str], Tested],
    sets: Mapping[str, TrainingSet],
    class_names: Sequence[str],
) -> Iterator[RareCell]:
    """Yields a cell's result for each rare class that has test examples."""
    mine, training_set = tested[key], sets[key[0]]
    reference = _find_reference(key, tested)
    for k, recall in mine.recall.items():
        if np.isnan(recall).any():
            logger.warning(
                "%s: no test row has class %s, so the class is left out", key[0], class_names[k]
            )
            continue
        base = tested[reference].recall[k] if reference else None
        auc = mine.auc[k]
        yield RareCell(
            training_set=training_set.name,
            class_name=class_names[k],
            fraction=training_set.fraction,
            class_rows=training_set.per_class[k],
            rows=training_set.rows,
            method=key[1],
            epsilon=key[2],
            private=mine.record.guaranteed,
            seeds=len(recall),
            recall=estimate_share(recall.tolist(), mine.counted[k][0]),
            auc=None if auc is None else estimate_share(auc.tolist(), mine.counted[k][1]),
            never_predicted=int(mine.never[k].sum()),
            macro_accuracy=float(np.mean([s["macro_accuracy"] for s in mine.record.seeds])),
            reference=reference[1:] if reference else None,
            reference_recall=None if base is None else float(base.mean()),
            reference_learnt=base is not None
            and float(base.mean()) > least_reference(len(class_names)),
            **_recall_drop(recall, base),
        )


def _recall_drop(recall: np.ndarray, base: np.ndarray | None) -> dict[str, float | None]:
    """Returns the fields `drop`, `drop_low` and `drop_high` of a `RareCell`."""
    if base is None:
        return {"drop": None, "drop_low": None, "drop_high": None}
    gap, half = compare_means(recall.tolist(), base.tolist())
    ends = (None, None) if half is None else (gap - half, gap + half)
    return {"drop": gap, "drop_low": ends[0], "drop_high": ends[1]}


def _find_reference(
    key: tuple[str, str, str], tested: Mapping[tuple[str, str, str], Tested]
) -> tuple[str, str, str] | None:
    """Returns the reference: a non-private baseline on equal rows, else the method at inf."""
    name, method, _ = key
    ceilings = [k for k, cell in tested.items() if k[0] == name and cell.record.is_ceiling]
    candidates = [*ceilings, (name, method, INFINITE)]
    reference = next((each for each in candidates if each in tested), None)
    return None if reference == key else reference


def estimate_share(values: Sequence[float], counted: float) -> Estimate:
    """Returns the mean over seeds of a share, with an interval over seeds and test examples.

    Args:
      counted: the number of independent test examples or patients behind each share.
    """
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    low, high = wilson_interval(mean, counted)
    if len(array) == 1:
        return Estimate(mean=mean, std=None, low=low, high=high)
    std = 0.0 if np.ptp(array) <= SAME else float(array.std(ddof=1))
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(array) - 1)) * std / len(array) ** 0.5
    return Estimate(
        mean=mean,
        std=std,
        low=min(low, max(0.0, mean - half)),
        high=max(high, min(1.0, mean + half)),
    )


def least_reference(classes: int) -> float:
    """Returns the recall of the reference head above which it has learnt a class.

    A head of pure noise has recall 1 / classes, so half of the reference's recall must be larger
    than 1 / classes. With two classes this is impossible, so nothing is compared.
    """
    return max(_LEAST_REFERENCE, 2 / classes)


def _keep_promised(cells: Sequence[RareCell]) -> list[RareCell]:
    return [cell for cell in cells if cell.private and cell.reference_learnt]


def _rows_times_epsilon(cell: RareCell) -> float:
    return cell.class_rows * epsilon_value(cell.epsilon)


def retained_recall(cell: RareCell) -> float:
    assert cell.reference_recall
    return min(cell.recall.mean / cell.reference_recall, 1.0)


def break_down(cells: Sequence[RareCell], *, class_name: str, method: str) -> BreakDown:
    """Finds the products n_c * epsilon at which a method has half of the reference's recall.

    Args:
      cells: cells of one backbone; other classes and methods, and non-private cells, are ignored.
    """
    # Budgets given as a risk are left out, because the record lacks their epsilons.
    mine = [
        c
        for c in cells
        if c.private
        and (c.class_name, c.method) == (class_name, method)
        and find_risk(c.epsilon) is None
    ]
    compared = sorted(_keep_promised(mine), key=_rows_times_epsilon)
    held = [retained_recall(cell) >= 0.5 for cell in compared]
    products = [_rows_times_epsilon(cell) for cell in compared]
    reached = next((p for p, good in zip(products, held, strict=True) if good), None)
    failed = max((p for p, good in zip(products, held, strict=True) if not good), default=0.0)
    lasting = next((product for product in products if product > failed), None)
    if not compared:
        note = "nothing to compare with"
    elif reached is None:
        note = "above the largest product of the study"
    elif all(held):
        note = "at or below the smallest product of the study"
    elif lasting is None:
        note = "the largest product of the study fails again"
    else:
        note = ""
    return BreakDown(
        class_name=class_name,
        method=method,
        reached=reached,
        lasting=lasting,
        cells=len(compared),
        left_out=len(mine) - len(compared),
        smallest=products[0] if products else None,
        largest=products[-1] if products else None,
        note=note,
    )
