"""Embeds the features of each (dataset, backbone) in the plane by t-SNE, not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis, Cost, Measurement
from dpprobe.exhibits.exhibit import one, waits

ANALYSIS = Analysis(
    name="tsne",
    describe="The t-SNE plot of each (dataset, backbone).",
    reads=None,
    measurement=Measurement(
        rule="embed_tsne",
        words="t-SNE",
        needs={
            "manifest": one(
                lambda f, p: f.locate_manifest(p["dataset"], p["backbone"], f.study.tsne.split)
            ),
            "shards": waits(
                lambda f, p: f.list_shards(p["dataset"], p["backbone"], f.study.tsne.split)
            ),
        },
        outputs={"": "embeddings/{dataset}/{backbone}/tsne.parquet"},
        params={
            "options": lambda study, _place: study.tsne.embedding_params(),
            "seed": lambda study, _place: study.seed,
        },
        job="dpprobe.analyses.tsne.measure:embed_tsne",
        cost=lambda _study, _place, size: Cost(memory_mb=2000 + 4.0 * size.megabytes(), minutes=60),
    ),
    target="embeddings",
    named_datasets=lambda _study: [],
)
