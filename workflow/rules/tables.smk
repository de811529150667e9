# One tidy table of each dataset's cells, and tables for readers.

from dpprobe.results.cell_files import METRICS_FILE, STATEMENT_FILE
from dpprobe.stage_versions import VERSIONS


rule summarise:
    """One row per cell of a dataset, as a table."""
    input:
        metrics=lambda wildcards: FILES.list_cells(
            FILES.list_study_cells(wildcards.dataset), [METRICS_FILE]
        ),
        # for the privacy cost of selecting the best head
        statements=lambda wildcards: FILES.list_cells(
            FILES.list_study_cells(wildcards.dataset), [STATEMENT_FILE]
        ),
    output:
        "<results>/summary/{dataset}.parquet",
    log:
        "<logs>/summarise/{dataset}.log",
    benchmark:
        "<benchmarks>/summarise/{dataset}.tsv"
    conda:
        "../../envs/report.yaml"
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
