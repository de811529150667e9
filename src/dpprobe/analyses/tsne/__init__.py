"""Embeds the features of each (dataset, backbone) in the plane by t-SNE; not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis, Cost, Measurement, of_datasets
from dpprobe.exhibits.exhibit import FIRST, LAST_FIGURES, Exhibit, many, one, waits

PACKAGE = "dpprobe.analyses.tsne"

EMBEDDING = one(lambda files, place: files.locate_embedding(place["dataset"], place["backbone"]))

FIGURE_PARAMS = {"split": lambda study, _place: study.tsne.split}

TSNE_GRID = Exhibit(
    name="plot_tsne_grid",
    kind="figure",
    order=FIRST,
    files={"": "figures/tsne"},
    needs={"embeddings": many(of_datasets(lambda files, name: files.list_embeddings(name)))},
    make=f"{PACKAGE}.show:plot_tsne_grid",
    words="t-SNE of every dataset and backbone",
    category="t-SNE",
    caption="tsne.rst",
    labels={"backbone": "all"},
    params=FIGURE_PARAMS,
    places=lambda study: [{}] if len(study.datasets) > 1 else [],
    memory_mb=1500,
    minutes=20,
)

# MLflow's run of a dataset logs these figures, because `TSNE_GRID` changes with other datasets.
DATASET_TSNE = Exhibit(
    name="plot_dataset_tsne",
    kind="figure",
    files={"": "figures/{dataset}/tsne"},
    needs={"embeddings": many(lambda files, place: files.list_embeddings(place["dataset"]))},
    make=f"{PACKAGE}.show:plot_tsne_grid",
    words="t-SNE of {dataset}, every backbone",
    category="t-SNE",
    subcategory="{dataset}",
    caption="tsne.rst",
    labels={"backbone": "all"},
    params=FIGURE_PARAMS,
    places=lambda study: (
        [{"dataset": name} for name in study.datasets] if len(study.backbones) > 1 else []
    ),
    memory_mb=1500,
    minutes=20,
)

TSNE = Exhibit(
    name="plot_tsne",
    kind="figure",
    order=LAST_FIGURES,
    files={"": "figures/{dataset}/tsne_{backbone}"},
    needs={"embedding": EMBEDDING},
    make=f"{PACKAGE}.show:plot_tsne",
    words="t-SNE plot of {dataset}, {backbone}",
    category="t-SNE",
    subcategory="{dataset}",
    labels={"backbone": "{backbone}"},
    params=FIGURE_PARAMS,
)

ANALYSIS = Analysis(
    name="tsne",
    describe="The t-SNE plot of each (dataset, backbone).",
    reads=None,
    unpriced="t-SNE of training images",
    exposes=lambda study, _dataset: [
        f"{backbone}/t-SNE of training images"
        for backbone in study.backbones
        if study.tsne.split == "train"
    ],
    # Embeddings do not record their split, so existing files are ignored; `exposes` lists results.
    reveals=lambda _path: False,
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
    target_shows=False,
    exhibits=(TSNE_GRID, DATASET_TSNE, TSNE),
)
