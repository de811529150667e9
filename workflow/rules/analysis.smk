# Looks at the features themselves: t-SNE embeddings and near-duplicates of public images.


rule embed_tsne:
    input:
        manifest=lambda wildcards: manifest_path(
            wildcards.dataset, wildcards.backbone, STUDY.tsne.split
        ),
        shards=lambda wildcards: shard_paths(
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
        version=VERSIONS["tsne"],
    message:
        "t-SNE of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/embed_tsne.py"


rule check_overlap:
    input:
        tables=lambda wildcards: [
            f"<data>/{dataset}/{split}.parquet"
            for dataset, split in overlap_splits(wildcards)
        ],
        manifests=lambda wildcards: [
            manifest_path(dataset, wildcards.backbone, split)
            for dataset, split in overlap_splits(wildcards)
        ],
        shards=lambda wildcards: [
            path
            for dataset, split in overlap_splits(wildcards)
            for path in shard_paths(dataset, wildcards.backbone, split)
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
