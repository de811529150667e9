# Looks at the features themselves: t-SNE embeddings and near-duplicates of public images.


def removed_counts(wildcards):
    """The description of a dataset that says what was removed from it, where that is done."""
    removed = wildcards.dataset in ALL_ROWS
    return f"<data>/{wildcards.dataset}/dataset.json" if removed else []


rule embed_tsne:
    input:
        manifest=lambda wildcards: FILES.locate_manifest(
            wildcards.dataset, wildcards.backbone, STUDY.tsne.split
        ),
        shards=lambda wildcards: FILES.list_shards(
            wildcards.dataset, wildcards.backbone, STUDY.tsne.split
        ),
    output:
        "<results>/embeddings/{dataset}/{backbone}/tsne.parquet",
    log:
        "<logs>/embed_tsne/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/embed_tsne/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    # The number of threads changes openTSNE's result, so it is fixed.
    threads: 1
    resources:
        mem_mb=memory(2000, factor=4.0),
        runtime=minutes(60),
    params:
        options=STUDY.tsne.embedding_params(),
        seed=STUDY.seed,
        version=VERSIONS["embedding"],
    message:
        "t-SNE of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/embed_tsne.py"


rule check_overlap:
    input:
        tables=lambda wildcards: [
            f"<data>/{dataset}/{split}.parquet"
            for dataset, split in FILES.list_overlap_splits(wildcards.dataset)
        ],
        manifests=lambda wildcards: [
            FILES.locate_manifest(dataset, wildcards.backbone, split)
            for dataset, split in FILES.list_overlap_splits(wildcards.dataset)
        ],
        shards=lambda wildcards: [
            path
            for dataset, split in FILES.list_overlap_splits(wildcards.dataset)
            for path in FILES.list_shards(dataset, wildcards.backbone, split)
        ],
        removed=removed_counts,
    output:
        counts="<results>/overlap/{dataset}/{backbone}.json",
        matches="<results>/overlap/{dataset}/{backbone}.parquet",
    log:
        "<logs>/check_overlap/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/check_overlap/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 4
    resources:
        mem_mb=memory(4000),
        runtime=minutes(60, per_gb=60),
    params:
        threshold=STUDY.overlap.threshold if STUDY.overlap else None,
        version=VERSIONS["overlap"],
    message:
        "near-duplicates of {wildcards.dataset} among public images, {wildcards.backbone}"
    script:
        "../../scripts/check_overlap.py"
