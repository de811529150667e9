# A classifier from the class names alone, and linear probes on a few images a class: neither is private, both
# are what private heads are read against.


rule classify_zero_shot:
    input:
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=lambda wildcards: FILES.list_shards(
            wildcards.dataset, wildcards.backbone, "test"
        ),
        text="<results>/features/{dataset}/{backbone}/text.safetensors",
    output:
        metrics="<results>/zero_shot/{dataset}/{backbone}/metrics.json",
        predictions="<results>/zero_shot/{dataset}/{backbone}/predictions.parquet",
    log:
        "<logs>/classify_zero_shot/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/classify_zero_shot/{dataset}/{backbone}.tsv"
    wildcard_constraints:
        backbone=names(TEXT_BACKBONES),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, factor=2.0),
        runtime=minutes(20, per_gb=10),
    params:
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        seed=STUDY.seed,
        version=VERSIONS["zero_shot"],
    message:
        "zero-shot classification of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/classify_zero_shot.py"


rule probe_few_shot:
    input:
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=lambda wildcards: [
            path
            for split in ("train", "test")
            for path in FILES.list_shards(wildcards.dataset, wildcards.backbone, split)
        ],
    output:
        rows="<results>/few_shot/{dataset}/{backbone}.parquet",
        record="<results>/few_shot/{dataset}/{backbone}.json",
    log:
        "<logs>/probe_few_shot/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/probe_few_shot/{dataset}/{backbone}.tsv"
    wildcard_constraints:
        backbone=names(STUDY.few_shot_backbones()),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 2
    resources:
        mem_mb=training_memory,
        runtime=minutes(60, per_gb=240),
    params:
        options=dumped(STUDY.few_shot) if STUDY.few_shot else None,
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        seed=STUDY.seed,
        memory_mb=STUDY.features.memory_mb,
        version=VERSIONS["few_shot"],
    message:
        "few-shot probes of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/probe_few_shot.py"
