# Sub-classes and memorisation of the features of each (dataset, backbone): not private, and only where a study asks.
rule measure_long_tail:
    input:
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=lambda wildcards: [
            path
            for split in ("train", "test")
            for path in FILES.list_shards(wildcards.dataset, wildcards.backbone, split)
        ],
    output:
        rows=f"<results>/{LONG_TAIL}/{{dataset}}/{{backbone}}.parquet",
        record=f"<results>/{LONG_TAIL}/{{dataset}}/{{backbone}}.json",
    log:
        "<logs>/measure_long_tail/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/measure_long_tail/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    # The number of threads may change the last bits of the results, so it is fixed.
    threads: 1
    resources:
        mem_mb=long_tail_memory,
        runtime=long_tail_minutes,
    params:
        options=dumped(STUDY.long_tail) if STUDY.long_tail else None,
        seed=STUDY.seed,
        version=VERSIONS["long_tail"],
    message:
        "long tail of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/measure_long_tail.py"


rule write_long_tail_tables:
    input:
        records=later(long_tail_records),
        summaries=later(long_tail_summaries),
    output:
        csv=report(
            expand("<results>/tables/{name}.csv", name=LONG_TAIL_TABLES),
            caption="../../resources/captions/long_tail.rst",
            category="Long tails",
        ),
        markdown=expand("<results>/tables/{name}.md", name=LONG_TAIL_TABLES),
    log:
        "<logs>/write_long_tail_tables.log",
    benchmark:
        "<benchmarks>/write_long_tail_tables.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["tables"],
    message:
        "tables of long tails"
    script:
        "../../scripts/write_long_tail_tables.py"


rule plot_long_tail:
    input:
        lambda wildcards: long_tail_records(wildcards.dataset),
    output:
        svg="<results>/figures/{dataset}/long_tail.svg",
        png=report(
            "<results>/figures/{dataset}/long_tail.png",
            caption="../../resources/captions/long_tail.rst",
            category="Long tails",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "<logs>/plot_long_tail/{dataset}.log",
    benchmark:
        "<benchmarks>/plot_long_tail/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "long tail of {wildcards.dataset}"
    script:
        "../../scripts/plot_long_tail.py"


rule plot_long_tail_gap:
    input:
        records=later(long_tail_records),
        summaries=later(long_tail_summaries),
    output:
        svg="<results>/figures/long_tail_gap.svg",
        png=report(
            "<results>/figures/long_tail_gap.png",
            caption="../../resources/captions/long_tail_gap.rst",
            category="Long tails",
            labels={"dataset": "all"},
        ),
    log:
        "<logs>/plot_long_tail_gap.log",
    benchmark:
        "<benchmarks>/plot_long_tail_gap.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "long tails and the price of privacy"
    script:
        "../../scripts/plot_long_tail_gap.py"


rule long_tail:
    input:
        later(long_tail_study_files),
        lambda wildcards: [
            path for dataset in LONG_TAIL_DATASETS for path in long_tail_files(dataset)
        ],


for dataset in LONG_TAIL_DATASETS:

    rule:
        name:
            f"long_tail_{dataset}"
        input:
            later(long_tail_files, dataset),
