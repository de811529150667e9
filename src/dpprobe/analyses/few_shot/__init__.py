"""Linear probes on a few images of each class; not private."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import Analysis, Cost, JobSize, Measurement
from dpprobe.exhibits.exhibit import Place, one, waits
from dpprobe.training.training_cost import estimate_memory_mb

if TYPE_CHECKING:
    from dpprobe.study.study import Study


def estimate_cost(study: Study, _place: Place, size: JobSize) -> Cost:
    """Estimates a job's memory as for training, and its time from the size of the features."""
    return Cost(
        memory_mb=estimate_memory_mb(study, size.megabytes()),
        minutes=60 + 240 * size.megabytes() / 1e3,
    )


ANALYSIS = Analysis(
    name="few_shot",
    describe="Linear probes on a few images per class, not private; without this block, none.",
    reads=None,
    unpriced="few-shot probes",
    backbones=lambda study: study.few_shot_backbones(),
    measurement=Measurement(
        rule="probe_few_shot",
        words="few-shot probes",
        needs={
            "train": one(lambda f, p: f.locate_manifest(p["dataset"], p["backbone"], "train")),
            "test": one(lambda f, p: f.locate_manifest(p["dataset"], p["backbone"], "test")),
            "shards": waits(lambda f, p: f.list_shards(p["dataset"], p["backbone"])),
        },
        outputs={
            "rows": "few_shot/{dataset}/{backbone}.parquet",
            "record": "few_shot/{dataset}/{backbone}.json",
        },
        params={
            "options": lambda study, _place: study.few_shot.model_dump(mode="json"),
            "metric": lambda study, place: study.datasets[place["dataset"]].metric,
            "seed": lambda study, _place: study.seed,
            "memory_mb": lambda study, _place: study.features.memory_mb,
        },
        job="dpprobe.analyses.few_shot.measure:probe_few_shot",
        cost=estimate_cost,
        threads=2,
        on_device=True,
    ),
    named_datasets=lambda _study: [],
)
