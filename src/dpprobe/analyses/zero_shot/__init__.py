"""Zero-shot classifiers, made from class names without training; results are not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis, Cost, Measurement
from dpprobe.exhibits.exhibit import one, waits

ANALYSIS = Analysis(
    name="zero_shot",
    describe="Classifies test images by the text embeddings of the class names.",
    reads=None,
    backbones=lambda study: study.text_backbones(),
    measurement=Measurement(
        rule="classify_zero_shot",
        words="zero-shot classification",
        needs={
            "test": one(lambda f, p: f.locate_manifest(p["dataset"], p["backbone"], "test")),
            "shards": waits(lambda f, p: f.list_shards(p["dataset"], p["backbone"], "test")),
            "text": one(
                lambda f, p: f"{f.results}/features/{p['dataset']}/{p['backbone']}/text.safetensors"
            ),
        },
        outputs={
            "metrics": "zero_shot/{dataset}/{backbone}/metrics.json",
            "predictions": "zero_shot/{dataset}/{backbone}/predictions.parquet",
        },
        params={
            "model": lambda study, place: study.backbones[place["backbone"]].extraction_params()[
                "model"
            ],
            "metric": lambda study, place: study.datasets[place["dataset"]].metric,
            "seed": lambda study, _place: study.seed,
        },
        job="dpprobe.analyses.zero_shot.measure:classify_zero_shot",
        cost=lambda _study, _place, size: Cost(
            memory_mb=2000 + 2.0 * size.megabytes(), minutes=20 + 10 * size.megabytes() / 1e3
        ),
    ),
    named_datasets=lambda _study: [],
)
