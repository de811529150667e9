rule embed_tsne:
    input:
        manifest=f"{RESULTS}/features/{{dataset}}/{{backbone}}/{STUDY.tsne.split}/manifest.json",
        shards=lambda wildcards: shard_paths(
            wildcards.dataset, wildcards.backbone, STUDY.tsne.split
        ),
    output:
        f"{RESULTS}/embeddings/{{dataset}}/{{backbone}}/tsne.parquet",
    log:
        f"{RESULTS}/logs/embed_tsne/{{dataset}}/{{backbone}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/embed_tsne/{{dataset}}/{{backbone}}.tsv"
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


rule plot_tsne:
    input:
        f"{RESULTS}/embeddings/{{dataset}}/{{backbone}}/tsne.parquet",
    output:
        svg=f"{RESULTS}/figures/{{dataset}}/tsne_{{backbone}}.svg",
        png=report(
            f"{RESULTS}/figures/{{dataset}}/tsne_{{backbone}}.png",
            caption="../../resources/captions/tsne.rst",
            category="t-SNE",
            subcategory="{dataset}",
            labels={"backbone": "{backbone}"},
        ),
    log:
        f"{RESULTS}/logs/plot_tsne/{{dataset}}/{{backbone}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/plot_tsne/{{dataset}}/{{backbone}}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        split=STUDY.tsne.split,
        version=VERSIONS["figures"],
    message:
        "t-SNE plot of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/plot_tsne.py"


rule check_overlap:
    input:
        tables=lambda wildcards: [
            f"{DATA}/{dataset}/{split}.parquet"
            for dataset, split in overlap_splits(wildcards)
        ],
        manifests=lambda wildcards: [
            f"{RESULTS}/features/{dataset}/{wildcards.backbone}/{split}/manifest.json"
            for dataset, split in overlap_splits(wildcards)
        ],
        shards=lambda wildcards: [
            path
            for dataset, split in overlap_splits(wildcards)
            for path in shard_paths(dataset, wildcards.backbone, split)
        ],
    output:
        counts=f"{RESULTS}/overlap/{{dataset}}/{{backbone}}.json",
        matches=f"{RESULTS}/overlap/{{dataset}}/{{backbone}}.parquet",
    log:
        f"{RESULTS}/logs/check_overlap/{{dataset}}/{{backbone}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/check_overlap/{{dataset}}/{{backbone}}.tsv"
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


rule plot_overlap:
    input:
        matches=f"{RESULTS}/overlap/{{dataset}}/{{backbone}}.parquet",
        tables=lambda wildcards: [
            f"{DATA}/{dataset}/{split}.parquet"
            for dataset, split in overlap_splits(wildcards)
        ],
    output:
        svg=f"{RESULTS}/figures/{{dataset}}/overlap_{{backbone}}.svg",
        # private photographs: not marked for Snakemake's report, which people send around
        png=f"{RESULTS}/figures/{{dataset}}/overlap_{{backbone}}.png",
    log:
        f"{RESULTS}/logs/plot_overlap/{{dataset}}/{{backbone}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/plot_overlap/{{dataset}}/{{backbone}}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "nearest public images of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/plot_overlap.py"
