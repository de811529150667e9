# A dataset's cells as one tidy table, and the tables that people read.


rule summarise:
    input:
        metrics=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), [METRICS_FILE]
        ),
        marks=lambda wildcards: job_marks(dataset_cells(wildcards.dataset)),
    output:
        "<results>/summary/{dataset}.parquet",
    log:
        "<logs>/summarise/{dataset}.log",
    benchmark:
        "<benchmarks>/summarise/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        study=STUDY.study,
        metric_of=metric_of,
        version=VERSIONS["summary"],
    message:
        "summary of {wildcards.dataset}"
    script:
        "../../scripts/summarise.py"


