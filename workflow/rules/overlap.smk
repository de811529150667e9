# Finds near-duplicates of public images.

from dpprobe.stage_versions import VERSIONS


rule check_overlap:
    """Near-duplicates of public images in a dataset."""
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
    output:
        counts="<results>/overlap/{dataset}/{backbone}.json",
        matches="<results>/overlap/{dataset}/{backbone}.parquet",
    log:
        "<logs>/check_overlap/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/check_overlap/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/extraction.yaml"
    threads: 4
    resources:
        mem_mb=memory(4000),
        runtime=minutes(60, per_gb=60),
        gpu=device_gpus,
    params:
        threshold=STUDY.overlap.threshold if STUDY.overlap else None,
        version=VERSIONS["overlap"],
    message:
        "near-duplicates of {wildcards.dataset} among public images, {wildcards.backbone}"
    script:
        "../../scripts/check_overlap.py"
