"""Zero-shot classification: compares image features with the text embeddings of the classes.

As in Radford et al. 2021, section 3.1.2, logits are cosines of the image's embedding with the
classes' embeddings, times the model's logit scale. The classifier uses no training example, so it
costs no privacy. Results on a private test split are not private.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpprobe.analyses.baseline_record import ZERO_SHOT
from dpprobe.data.options import Headline
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.text_file import read_text_embeddings
from dpprobe.files.json_files import write_record
from dpprobe.files.table_files import write_table
from dpprobe.results import uncertainty
from dpprobe.results.metrics import NO_AUC, Evaluation, Link, ranked_labels
from dpprobe.results.unit_counts import count_units, unit_codes
from dpprobe.training.cell_contents import list_column
from dpprobe.training.fit_inputs import choose_headline, read_labels

logger = logging.getLogger("dpprobe")

BLOCK_ROWS = 4096
NOTE = "No training row is used. Test results are computed without noise."
# Metrics that need no threshold, because cosines without a logit bias have no natural threshold.
RANKED = ("auc", "mean_average_precision", "per_label_auc", "per_label_average_precision")


def classify_zero_shot(
    test: Path,
    text: Path,
    *,
    metrics: Path,
    predictions: Path,
    dataset: str,
    backbone: str,
    model: str,
    metric: Headline | None,
    seed: int,
) -> None:
    """Scores a test split by the text embeddings of its classes.

    Args:
      test: the manifest of the test features, which are image embeddings of `model`.
      text: the file of text embeddings, written by `write_text_embeddings`.
      metrics: a JSON file of results, with intervals over test examples or patients.
      predictions: a parquet file with id, label, scores, subgroups and, if known, patient numbers.
      metric: the dataset's headline metric; None for the default. With several labels per example
        and a model without a logit bias, the headline is always AUC.

    Raises:
      DataError: if the headline metric is not defined on the test rows.
    """
    store = FeatureStore(test).leave_out_nulls()
    weights, facts = read_text_embeddings(text)
    scores = np.concatenate([block for _, block in scored_blocks(store, weights, facts)])
    labels, units = read_labels(store), unit_codes(store.units)
    link = _choose_link(facts["logit_bias"], multi_label=store.multi_label)
    evaluation = Evaluation(scores, labels, link=link, accepted=store.accepted, units=units)
    tested = evaluation.compute_metrics()
    summary = uncertainty.summarise_records([tested], evaluation, seed=seed)
    shown = choose_headline(store, metric)
    if store.multi_label and link == "none":
        tested, summary, shown = _keep_ranked(tested), _keep_ranked(summary), "auc"
    if shown not in summary:
        raise DataError(f"{test}: {NO_AUC}")
    write_table(predictions, _make_predictions(store, labels, scores, units))
    write_record(
        metrics,
        {
            **ZERO_SHOT,
            "dataset": dataset,
            "backbone": backbone,
            "private": False,
            "note": NOTE,
            "headline": shown,
            "multi_label": store.multi_label,
            "class_names": list(store.class_names),
            "auc_labels": len(ranked_labels(labels, store.num_classes)),
            "rows": {"test": store.rows},
            "units": None if units is None else {"test": count_units(units)},
            "link": link,
            **_describe_text(facts, model),
            "features": store.fingerprint,
            "metrics": tested,
            "summary": summary,
        },
        predictions,
    )
    logger.info("zero-shot: %s %.2f %%", shown, 100 * summary[shown]["mean"])


def _keep_ranked(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in RANKED if name in values}


def _describe_text(facts: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Returns the record's fields on the text embeddings, in the order of the file."""
    return {
        "logit_scale": facts["logit_scale"],
        "logit_bias": facts["logit_bias"],
        "prompts": {"set": facts["set"], "templates": facts["templates"]},
        "text": facts["fingerprint"],
        "text_encoder": {"model": model, "weights_sha256": facts["weights_sha256"]},
    }


def scored_blocks(
    store: FeatureStore, weights: npt.NDArray[np.float32], facts: Mapping[str, Any]
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yields blocks of logits in the order of rows: (first row, float32 [m, classes]).

    The cosine of a row of zeros with each class is 0.
    """
    scale = np.float32(facts["logit_scale"])
    bias = np.float32(facts["logit_bias"] or 0.0)
    for start, block in store.read_blocks(BLOCK_ROWS):
        lengths = np.linalg.norm(block, axis=1, keepdims=True)
        unit = block / np.where(lengths > 0, lengths, 1.0)
        yield start, (scale * (unit @ weights.T) + bias).astype(np.float32)


def _choose_link(bias: float | None, *, multi_label: bool) -> Link:
    """Returns the function that turns the model's scores into probabilities; "none" if unknown."""
    if bias is None:
        return "none" if multi_label else "softmax"
    return "sigmoid" if multi_label else "none"


def _make_predictions(
    store: FeatureStore, labels: np.ndarray, scores: np.ndarray, units: np.ndarray | None
) -> pa.Table:
    columns = {
        "id": pa.array(list(store.ids)),
        "label": list_column(labels, pa.int8()) if store.multi_label else pa.array(labels),
        "scores": list_column(scores, pa.float32()),
    }
    if units is not None:
        columns["unit"] = pa.array(units)
    for name, values in store.groups.items():
        columns[name] = pa.array(list(values))
    return pa.table(columns)
