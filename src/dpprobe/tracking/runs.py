"""Describes MLflow runs: for a cell, for a summary over all epsilons, and for a study."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from mlflow.entities import Dataset, DatasetInput

from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from dpprobe.analyses.fairness.fairness_table import shown_metrics
from dpprobe.counted_nouns import count_noun
from dpprobe.data.table import DatasetInfo, read_info
from dpprobe.errors import TrackingError
from dpprobe.exhibits.class_colours import CLASS_COLOURS
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.registry import method_options
from dpprobe.json_values import hash_value
from dpprobe.privacy.limits import INFINITE, delta_above, rounded_up
from dpprobe.privacy.risk import RiskEpsilon, budget_title, budget_words
from dpprobe.privacy.statement_words import explain_statement
from dpprobe.reporting.confusion_matrix import confusion_html
from dpprobe.reporting.headline import choice_words, list_doubts, verdict
from dpprobe.results import confusion
from dpprobe.results.best_private import best_private
from dpprobe.results.cautions import never_predicted
from dpprobe.results.cell_files import HISTORY_FILE, PREDICTIONS_FILE, STATEMENT_FILE
from dpprobe.results.cell_record import CellName, CellRecord, read_statement
from dpprobe.results.headline_metric import least_class
from dpprobe.results.metrics import SCALAR_METRICS, THRESHOLDS
from dpprobe.results.summary import Grid, epsilon_of
from dpprobe.tracking.store import first_line
from dpprobe.versions import VERSIONS

OUTSIDE = (
    "Not private: test results, learning curves, confusion counts and pictures are computed "
    "without noise. No guarantee covers them, nor a choice that was made by looking at them."
)
RELEASE = (
    "The run of each cell states the guarantee of its heads, and whether they may be released."
)
# Suffix of a summary's metrics by epsilon, whose MLflow steps are 100 x epsilon.
AGAINST_EPSILON = "by_100_eps"
NAME_LENGTH = 22  # longer run names are cut in MLflow's table
TAG_LENGTH = 2000  # characters of a tag that lists classes
CLASSES_LOGGED = 100  # with more classes, only metrics.json has each class's recall
# Middle parts of a study's metric names: the best result, and the epsilon of its selection.
BEST, CHOICE = "/best_private_eps_", "/choice_epsilon_eps_"

RUN_COLOUR = "mlflow.runColor"  # the tag from which MLflow 3.17's page takes a run's colour

SCALARS = {name: f"test/{name}" for name in SCALAR_METRICS} | {
    "expected_calibration_error": "test/ece"
}
# Metrics that a summary run shows at each epsilon, by the cells' headline metric.
CURVES = {
    "accuracy": ("accuracy", "macro_accuracy"),
    "auc": ("auc", "mean_average_precision", "accuracy"),
    "macro_accuracy": ("macro_accuracy", "accuracy"),
}
# Parts of the gap between the best and the worst group of an attribute.
GAP_PARTS = (
    "gap",
    "low",
    "high",
    "chance_gap",
    "worst",
    "difference",
    "difference_low",
    "difference_high",
)
PER_CLASS = ("per_class_recall", "per_label_auc")  # metrics with one number per class

MetricValue = tuple[str, float, int]  # name, value, step
CellFile = tuple[Path, CellRecord]  # path of metrics.json, and its content
AuditFile = tuple[Path, AuditRecord]


@dataclass(frozen=True, kw_only=True)
class RunContents:
    """The contents of one MLflow run.

    Attributes:
      key: the name of the result that the run shows.
      content_hash: hash of the result; a run with another hash is out of date.
      artifacts: files, each with its folder in the run's artifacts.
      history: file of the learning curve, read only when the run is written.
      drawn: functions that return the text of further artifacts, by path.
      seconds: the duration that MLflow's table of runs shows.
      finished: time of completion, in seconds since the epoch.
    """

    key: str
    content_hash: str
    name: str
    note: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Sequence[MetricValue]
    artifacts: Sequence[tuple[Path, str]] = ()
    history: Path | None = None
    drawn: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    inputs: Sequence[DatasetInput] = ()
    seconds: float = 0.0
    finished: float = field(default_factory=time.time)


def cell_run(
    path: Path,
    record: CellRecord,
    study: str,
    shared_tags: Mapping[str, str],
    source: DatasetInput,
    audit: AuditFile | None = None,
    fairness: FairnessRecord | None = None,
) -> RunContents:
    """Describes the run of a cell: all its seeds, its audit, and the gaps between its subgroups."""
    cell, guarantee = record.cell, _name_guarantee(record)
    epsilon = budget_words(cell.epsilon).replace(INFINITE, "∞")
    percent = 100 * record.mean
    statement = read_statement(path.with_name(STATEMENT_FILE))
    words = explain_statement(statement)
    gaps = _fairness_metrics(fairness, cell) if fairness else []
    return RunContents(
        key="/".join((study, *record.cell.key[:3], f"eps-{cell.epsilon}")),
        content_hash=hash_value(
            [VERSIONS["tracking"], record.content_hash, dict(shared_tags)]
            + ([sha256_file(audit[0])] if audit else [])
            + ([gaps] if gaps else [])
        ),
        name=run_name(cell.method, "ε" + epsilon, cell.backbone),
        note=(
            f"{cell.method} on {cell.backbone} features of {cell.dataset}, {guarantee}: "
            f"{record.measure.title} {percent:.1f}%, mean of "
            f"{count_noun(len(record.seeds), 'seed')}."
            f"\n\n{words.promise}\n\n{words.attacks}"
            f"\n\n{_audit_note(audit)}{words.mode}\n\n{OUTSIDE}"
        ),
        params=_list_params(record),
        tags={
            **shared_tags,
            **cell.model_dump(),
            "head": record.head,
            "private": str(record.guaranteed).lower(),
            "guarantee": guarantee,
            **({"delta_above_one_over_n": "true"} if _is_delta_above(record) else {}),
            **_tag_never_predicted(record),
            "cell_fingerprint": record.fingerprint,
            "release": "not for release" if statement["mode"] == "benchmark" else statement["mode"],
        },
        metrics=(
            _cell_metrics(record)
            + allows_metrics(statement["allows"])
            + (_audit_metrics(audit[1]) if audit else [])
            + gaps
        ),
        history=path.with_name(HISTORY_FILE),
        artifacts=[
            (path, ""),
            (path.with_name(STATEMENT_FILE), ""),
            *([(audit[0], "audit")] if audit else []),
        ],
        drawn=_confusion_files(path, record),
        inputs=[source],
        seconds=record.seconds or 0.0,
        finished=path.stat().st_mtime,
    )


def _is_delta_above(record: CellRecord) -> bool:
    return record.delta is not None and delta_above(record.delta, record.n)


def _name_guarantee(record: CellRecord) -> str:
    if not record.guaranteed:
        return "not private"
    at = epsilon_of(record)
    risk = f", {budget_words(record.cell.epsilon)}" if isinstance(at, RiskEpsilon) else ""
    above = ", delta above 1/n" if _is_delta_above(record) else ""
    return f"({at:.12g}, {record.delta:g})-DP{risk}{above}"


def _list_params(record: CellRecord) -> dict[str, str]:
    params = {
        **record.cell.model_dump(),
        "head": record.head,
        "seeds": str(len(record.seeds)),
        "train_rows": str(record.rows.train),
        "dimension": str(record.dimension),
    }
    if record.units is not None:
        params["train_patients"] = str(record.units.train)
        params["test_patients"] = str(record.units.test)
    if record.delta is not None:
        params["delta"] = f"{record.delta:g}"
    return params | option_params({**record.options, "head": None}, params)


def _tag_never_predicted(record: CellRecord) -> dict[str, str]:
    """Returns a tag with the classes that some seed never predicts, if there are any."""
    never = {index for seed in record.seeds for index in seed.get("never_predicted", ())}
    names = ", ".join(record.class_names[index] for index in sorted(never))
    return {"never_predicted": names[:TAG_LENGTH]} if names else {}


def option_params(options: Mapping[str, Any], taken: Mapping[str, str]) -> dict[str, str]:
    """Returns a method's options as MLflow params, with a prefix for names in `taken`."""
    return {
        f"option_{name}" if name in taken else name: (
            value if isinstance(value, str) else json.dumps(value)
        )
        for name, value in options.items()
        if value is not None
    }


def summary_run(
    cells: Sequence[CellFile],
    study: str,
    shared_tags: Mapping[str, str],
    source: DatasetInput,
) -> RunContents:
    """Describes the summary run of a (backbone, method), from its cells at all epsilons."""
    ordered = sorted((record for _, record in cells), key=epsilon_of)
    first, cell = ordered[0], ordered[0].cell
    named = {**cell.model_dump(exclude={"epsilon"}), "head": first.head}
    steps = curve_steps([epsilon_of(record) for record in ordered])
    metrics: list[MetricValue] = []
    for record in ordered:
        for name in CURVES[record.headline]:
            if name not in record.summary:
                continue
            value = _round_value(record.summary[name].mean)
            metrics.append((f"{name}/eps_{record.cell.epsilon}", value, 0))
            if (step := steps.get(epsilon_of(record))) is not None:
                metrics.append((f"{name}/{AGAINST_EPSILON}", value, step))
    hashes = [[record.cell.epsilon, record.content_hash] for record in ordered]
    epsilons = ", ".join(budget_words(record.cell.epsilon) for record in ordered)
    return RunContents(
        key="/".join((study, *cell.key[:3])),
        content_hash=hash_value([VERSIONS["tracking"], hashes, dict(shared_tags)]),
        name=run_name(cell.method, cell.backbone),
        note=(
            f"{cell.method} on {cell.backbone} features of {cell.dataset} at epsilon {epsilons}."
            f"\n\n{RELEASE}\n\n{OUTSIDE}"
        ),
        params={**named, "epsilons": epsilons, "seeds": str(len(first.seeds))},
        tags={
            **shared_tags,
            **named,
            "private": _private_tag(record.guaranteed for record in ordered),
        },
        metrics=metrics,
        inputs=[source],
        seconds=sum(record.seconds or 0.0 for record in ordered),
        finished=max(path.stat().st_mtime for path, _ in cells),
    )


def study_run(
    study: str, grid: Grid, dataset_infos: Mapping[str, Path], artifacts: Sequence[tuple[Path, str]]
) -> RunContents:
    """Describes the run of a study: the best private result of each dataset and epsilon.

    The first artifact is the report; the report's file time is the end of the study.
    """
    infos = {name: read_info(path) for name, path in dataset_infos.items()}
    metrics, sentences = [], []
    for best in best_private(grid, {}):
        name = f"{best.dataset}{BEST}{best.epsilon}"
        metrics.append((name, _round_value(best.entry.mean / 100), 0))
        if best.gap is not None:
            metrics.append(
                (f"{best.dataset}/gap_eps_{best.epsilon}", _round_value(best.gap / 100), 0)
            )
        told = [verdict(best), f"Head: {best.method} on {best.backbone}.", *list_doubts(best)]
        told += [choice_words(best)]
        if never := never_predicted(best.entry):
            told.append(f"Never predicted: {never}.")
        if best.choice.epsilon is not None:
            metrics.append((f"{best.dataset}{CHOICE}{best.epsilon}", best.choice.epsilon, 0))
            cost = f"{rounded_up(best.choice.epsilon):g}"
            told.append(f"Publishing this selection costs at most ε = {cost}.")
        sentences.append(f"- {best.dataset}: {' '.join(filter(None, told))}")
    datasets = ", ".join(infos)
    return RunContents(
        key=study,
        content_hash=hash_value([VERSIONS["tracking"], hash_files(artifacts), metrics]),
        name=run_name(study),
        note="\n".join(
            [
                f"Study {study}: {count_noun(len(grid.entries), 'cell')} on {datasets}. "
                "report.html has all results.",
                "",
                RELEASE,
                "",
                OUTSIDE,
                "",
                "Best private results:",
                "",
                *sentences,
            ]
        ),
        params={"study": study, "datasets": datasets[:5000], "cells": str(len(grid.entries))},
        tags={
            "study": study,
            "private": _private_tag(entry.private for entry in grid.entries.values()),
        },
        metrics=metrics,
        artifacts=artifacts,
        inputs=[dataset_input(name, info) for name, info in infos.items()],
        finished=artifacts[0][0].stat().st_mtime,
    )


def dataset_input(dataset: str, info: DatasetInfo) -> DatasetInput:
    """Describes a dataset with dpprobe's digest, because MLflow would hash only a sample."""
    rows = {f"{name}_rows": split.rows for name, split in info.splits.items()}
    return DatasetInput(
        Dataset(
            name=dataset,
            digest=info.fingerprint[:36],
            source_type="dpprobe",
            source=json.dumps(dict(info.source)),
            profile=json.dumps(rows),
        )
    )


def pick_colour(index: int) -> str:
    """Returns a run's colour in charts, because MLflow's random colours may be similar."""
    return CLASS_COLOURS[index % len(CLASS_COLOURS)]


def run_name(*words: str) -> str:
    """Joins words to a run name of at most 22 characters; cuts the longest word in the middle."""
    texts = list(words)
    while len(" ".join(texts)) > NAME_LENGTH:
        longest = max(range(len(texts)), key=lambda index: len(texts[index]))
        text = texts[longest].replace("…", "")
        middle = len(text) // 2
        texts[longest] = f"{text[:middle]}…{text[middle + 1 :]}"
    return " ".join(texts)


def metric_name(text: str) -> str:
    """Returns a class name in the characters that MLflow allows in a metric's name.

    A slash would open a section of charts, and a single dot would be a folder, so both become "_".
    """
    cleaned = re.sub(r"[^\w.\- :]", "_", text)[:100].strip()
    return cleaned if cleaned.strip(".") else "_"


def curve_steps(epsilons: Sequence[float]) -> dict[float, int]:
    """Returns each finite epsilon's step on a summary's curve: 100 x epsilon, rounded.

    No two epsilons share a step, because MLflow shows only one point per step.
    """
    steps: dict[float, int] = {}
    last = -1
    for epsilon in sorted(filter(math.isfinite, epsilons)):
        last = max(last + 1, round(100 * epsilon))
        steps[epsilon] = last
    return steps


def curve_metrics(path: Path) -> list[MetricValue]:
    """Reads a cell's learning curve: means over seeds at each recorded step."""
    try:
        table = pq.read_table(path).to_pandas()
    except (OSError, ValueError) as error:
        raise _unreadable_error(path, error) from None
    result = []
    for column in ("train_loss", "test_accuracy", "test_auc"):
        # The mean is NaN if a seed diverged; pandas would otherwise ignore the seed.
        by_step = table[column].astype(float).groupby(table["step"])
        means = by_step.agg(lambda seeds: seeds.mean(skipna=False)).dropna()
        result += [
            (f"curve/{column}", _round_value(value), int(step)) for step, value in means.items()
        ]
    return [item for item in result if math.isfinite(item[1])]


def class_metrics(
    class_names: Sequence[str], seeds: Sequence[Mapping[str, Any]], metric: str
) -> dict[str, float | None]:
    """Returns a metric's mean over seeds for each class.

    Classes with equal names in MLflow get their index as a suffix.
    """
    names = [metric_name(str(name)) for name in class_names]
    numbered = [f"{name} {index}" for index, name in enumerate(names)]
    titles = [n if names.count(n) == 1 else m for n, m in zip(names, numbered, strict=True)]
    if len(set(titles)) < len(titles):  # a name with a suffix equals another class's name
        titles = numbered
    by_class = zip(*(seed[metric] for seed in seeds), strict=True)
    return {
        f"{metric}/{title}": None if None in values else float(np.mean(values))
        for title, values in zip(titles, by_class, strict=True)
    }


def scalar_metrics(summary: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    """Returns a summary's test metrics (see `MetricSummary`), by their names in MLflow."""
    values: dict[str, float | None] = {}
    for name, title in SCALARS.items():
        if (entry := summary.get(name)) is not None:
            values[title] = entry["mean"]
            parts = ("std", "low", "high", "rows_low", "rows_high", "both_low", "both_high")
            values |= {f"{title}_{part}": entry.get(part) for part in parts}
    return values


def list_metrics(values: Mapping[str, float | None]) -> list[MetricValue]:
    """Lists metrics with rounded values; omits None, NaN and infinity."""
    return [
        (name, _round_value(value), 0)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    ]


def _cell_metrics(record: CellRecord) -> list[MetricValue]:
    values = scalar_metrics({name: vars(entry) for name, entry in record.summary.items()})
    values["test/constant_accuracy"] = record.constant_accuracy
    if (least := least_class(record)) is not None:
        values["test/least_label_auc" if record.multi_label else "test/least_recall"] = least.value
    values["privacy/epsilon_target"] = epsilon_of(record)
    realised = record.realised_epsilon
    values["privacy/epsilon_realised"] = None if realised is None else rounded_up(realised)
    values["privacy/noise_multiplier"] = record.noise_multiplier
    values["time/train_seconds"] = record.seconds
    if len(record.class_names) <= CLASSES_LOGGED:
        for name in PER_CLASS:
            if name in record.seeds[0]:
                values |= class_metrics(record.class_names, record.seeds, name)
    return list_metrics(values)


def allows_metrics(allows: Mapping[str, Any]) -> list[MetricValue]:
    """Lists a privacy statement's bounds on the best attack on one head, rounded up."""
    return [
        ("allows/balanced_accuracy", rounded_up(allows["balanced_accuracy"]), 0),
        *(
            (f"allows/tpr_at_fpr_{rate}", rounded_up(value), 0)
            for rate, value in allows["true_positives"].items()
        ),
    ]


def _audit_metrics(audit: AuditRecord) -> list[MetricValue]:
    values: dict[str, float | None] = {}
    if box := audit.white_box:
        values["audit/epsilon_lower"] = box.epsilon_lower
        values["audit/confidence"] = box.confidence
        values["audit/caught_factor"] = box.caught_factor
    if audit.membership and (attack := audit.membership.find_attack()):
        values["attack/auc"] = attack.auc
        values["attack/tpr_at_fpr_0.001"] = attack.tpr_at_fpr.get("0.001")
    return list_metrics(values)


def _fairness_metrics(record: FairnessRecord, cell: CellName) -> list[MetricValue]:
    """Lists the gaps between the groups of each attribute, in the metrics that the report shows."""
    values: dict[str, float | None] = {}
    compared = record.find_cell(cell.method, cell.epsilon)
    for attribute in compared.attributes if compared else ():
        for metric in shown_metrics(record, attribute.attribute):
            if gap := attribute.gaps.get(metric):
                title = f"fairness/{metric_name(attribute.attribute)}_{metric}"
                values |= {f"{title}_{part}": getattr(gap, part) for part in GAP_PARTS}
    return list_metrics(values)


def _audit_note(audit: AuditFile | None) -> str:
    if audit is None or audit[1].white_box is None:
        return ""
    return f"{audit[1].in_words}\n\n"


def _confusion_files(path: Path, record: CellRecord) -> dict[str, Callable[[], str]]:
    """Maps paths to functions that return the confusion counts of all seeds, and the HTML page."""
    names = [str(name) for name in record.class_names]
    predictions, cell = path.with_name(PREDICTIONS_FILE), record.cell
    if len(names) > confusion.LARGEST:
        return {}

    @cache
    def count() -> Any:
        try:
            if not record.multi_label:
                return confusion.count_confusion(predictions, len(names))
            threshold = THRESHOLDS.get(method_options(record.options).link_on(True), 0.0)
            return confusion.label_confusion(predictions, len(names), threshold=threshold)
        except (OSError, ValueError) as error:
            raise _unreadable_error(predictions, error) from None

    if record.multi_label:
        return {"confusion/counts.csv": lambda: confusion.label_confusion_csv(count(), names)}
    title = f"{cell.dataset}, {cell.method} on {cell.backbone}, {budget_title(cell.epsilon)}"
    return {
        "confusion/counts.csv": lambda: confusion.confusion_csv(count(), names),
        "confusion/matrix.html": lambda: confusion_html(count(), names, title=title),
    }


def _unreadable_error(path: Path, error: Exception) -> TrackingError:
    return TrackingError(
        f"{path}: unreadable ({first_line(error)}); delete the cell's folder and run it again"
    )


def hash_files(artifacts: Sequence[tuple[Path, str]]) -> list[list[str]]:
    return [[folder, path.name, sha256_file(path)] for path, folder in artifacts]


def _private_tag(cells: Iterable[bool]) -> str:
    values = set(cells)
    return "mixed" if len(values) > 1 else str(values == {True}).lower()


def _round_value(value: float) -> float:
    """Rounds to four significant digits; metrics.json has all digits."""
    return float(f"{value:.4g}")
