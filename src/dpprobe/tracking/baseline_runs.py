"""MLflow runs of the baselines for private heads: zero-shot CLIP and few-shot probes.

Baseline runs are in the same experiment as their dataset's cells, with the same `test/` metrics. So
one column or chart compares baselines with private heads. Zero-shot classifiers and few-shot probes
are not private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import DatasetInput

from dpprobe.analyses.baseline_record import read_few_shot, read_zero_shot
from dpprobe.counted_nouns import count_noun
from dpprobe.files.plain_files import sha256_file
from dpprobe.json_values import hash_value
from dpprobe.tracking.runs import (
    OUTSIDE,
    RUN_COLOUR,
    RunContents,
    hash_files,
    list_metrics,
    pick_colour,
    run_name,
    scalar_metrics,
)
from dpprobe.tracking.views import COMPARED
from dpprobe.versions import VERSIONS

NO_EPSILON = "none"  # tag of runs without an epsilon
ZERO_SHOT = "zero_shot"
FEW_SHOT = "few_shot"


def list_baseline_runs(
    zero_shot: Sequence[Path],
    few_shot: Sequence[Path],
    *,
    study: str,
    shared_tags: Mapping[str, str],
    source: DatasetInput,
) -> list[RunContents]:
    """Describes a dataset's baseline runs: one per zero-shot classifier and per few-shot probe."""
    runs = []
    for path in zero_shot:
        record = read_zero_shot(path)
        encoder = record["text_encoder"]
        prompts = record["prompts"]
        params = {
            "prompts": str(prompts["set"]),
            "templates": str(len(prompts["templates"])),
            "first_template": prompts["templates"][0],
            "text_encoder": encoder["model"],
            "weights_sha256": encoder["weights_sha256"],
        }
        runs.append((path, record, ZERO_SHOT, record["summary"], params))
    for path in few_shot:
        record = read_few_shot(path)
        for probe in record["results"]:
            shots = "full" if probe["shots"] is None else str(probe["shots"])
            rows = max(probe["train_rows"])
            params = {"shots": shots, "seeds": str(probe["seeds"]), "train_rows": str(rows)}
            runs.append((path, record, f"{FEW_SHOT}/{shots}", probe["summary"], params))
    return [
        _baseline_run(
            *run,
            study=study,
            source=source,
            shared_tags={**shared_tags, RUN_COLOUR: pick_colour(index)},
        )
        for index, run in enumerate(runs)
    ]


def _baseline_run(
    path: Path,
    record: Mapping[str, Any],
    baseline: str,
    summary: Mapping[str, Mapping[str, Any]],
    params: Mapping[str, str],
    *,
    study: str,
    shared_tags: Mapping[str, str],
    source: DatasetInput,
) -> RunContents:
    """Describes one baseline run; `baseline` is the prefix of its metrics, such as few_shot/16."""
    dataset, backbone, shown = record["dataset"], record["backbone"], record["headline"]
    method = baseline.replace("/", "_")
    names = {"dataset": dataset, "backbone": backbone, "method": method, "epsilon": NO_EPSILON}
    metrics = scalar_metrics(summary)
    metrics |= {title.replace("test", baseline, 1): value for title, value in metrics.items()}
    what = "zero-shot classification by the class names"
    if baseline != ZERO_SHOT:
        shots = params["shots"]
        few = "all training examples"
        if shots != "full":
            few = f"{count_noun(int(shots), 'training example')} per class"
        what = f"a linear probe on {few}"
    return RunContents(
        key="/".join((study, dataset, backbone, baseline)),
        content_hash=hash_value(
            [VERSIONS["tracking"], sha256_file(path), baseline, dict(shared_tags)]
        ),
        name=run_name(method.replace("_", "-"), backbone),
        note=(
            f"{dataset}, {backbone}: {what}, not private: {shown} "
            f"{100 * summary[shown]['mean']:.1f}%.\n\n{record['note']}\n\n{OUTSIDE}"
        ),
        params={**names, **params},
        tags={
            **shared_tags,
            **names,
            COMPARED: "true",
            "private": "false",
            "guarantee": "not private",
            "release": "not for release",
        },
        metrics=list_metrics(metrics),
        artifacts=[(path, "")],
        inputs=[source],
        finished=path.stat().st_mtime,
    )


def dataset_run(
    baselines: Sequence[RunContents],
    *,
    dataset: str,
    study: str,
    shared_tags: Mapping[str, str],
    artifacts: Sequence[tuple[Path, str]],
    source: DatasetInput,
    finished: float,
) -> RunContents:
    """Describes the run of a whole dataset: figures, t-SNE plots, tables and baselines."""
    metrics = [
        (f"{run.params['backbone']}/{name}", value, step)
        for run in baselines
        for name, value, step in run.metrics
        if not name.startswith("test/")
    ]
    return RunContents(
        key=f"{study}/{dataset}",
        content_hash=hash_value(
            [VERSIONS["tracking"], metrics, hash_files(artifacts), dict(shared_tags)]
        ),
        name=run_name(dataset),
        note=(
            f"{dataset} as a whole: figures that compare backbones and methods, t-SNE planes, "
            f"tables, and the baselines of each backbone.\n\n{OUTSIDE}"
        ),
        params={"dataset": dataset},
        tags={**shared_tags, "dataset": dataset, "private": "mixed"},
        metrics=metrics,
        artifacts=artifacts,
        inputs=[source],
        finished=finished,
    )
