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


rule write_dataset_table:
    input:
        "<results>/summary/{dataset}.parquet",
    output:
        csv=report(
            "<results>/tables/{dataset}_accuracy.csv",
            caption="../../resources/captions/table.rst",
            category="Tables",
            labels={"dataset": "{dataset}"},
        ),
        markdown="<results>/tables/{dataset}_accuracy.md",
    log:
        "<logs>/write_dataset_table/{dataset}.log",
    benchmark:
        "<benchmarks>/write_dataset_table/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["tables"],
    message:
        "table of {wildcards.dataset}"
    script:
        "../../scripts/write_tables.py"


rule write_fairness_table:
    input:
        records=lambda wildcards: fairness_records(wildcards.dataset),
        tables=lambda wildcards: fairness_files(wildcards.dataset),
    output:
        csv=report(
            "<results>/tables/{dataset}_fairness.csv",
            caption="../../resources/captions/fairness.rst",
            category="Subgroups",
            labels={"dataset": "{dataset}"},
        ),
        markdown="<results>/tables/{dataset}_fairness.md",
    log:
        "<logs>/write_fairness_table/{dataset}.log",
    benchmark:
        "<benchmarks>/write_fairness_table/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000, factor=8.0),
        runtime=minutes(10),
    params:
        version=VERSIONS["tables"],
    message:
        "table of the subgroups of {wildcards.dataset}"
    script:
        "../../scripts/write_fairness_table.py"


rule write_tables:
    input:
        summary_paths(),
    output:
        csv=report(
            "<results>/tables/accuracy.csv",
            caption="../../resources/captions/table.rst",
            category="Tables",
            labels={"dataset": "all"},
        ),
        markdown="<results>/tables/accuracy.md",
    log:
        "<logs>/write_tables.log",
    benchmark:
        "<benchmarks>/write_tables.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["tables"],
    message:
        "table of accuracies"
    script:
        "../../scripts/write_tables.py"


rule write_paper_tables:
    input:
        metrics=lambda wildcards: cell_paths(study_cells(), [METRICS_FILE]),
        marks=lambda wildcards: job_marks(study_cells()),
        zero_shot=expand(
            "<results>/zero_shot/{dataset}/{backbone}/metrics.json",
            dataset=STUDY.datasets,
            backbone=TEXT_BACKBONES,
        ),
        few_shot=expand(
            "<results>/few_shot/{dataset}/{backbone}.json",
            dataset=STUDY.datasets,
            backbone=STUDY.few_shot_backbones(),
        ),
    output:
        report(
            expand("<results>/tables/papers/{name}.csv", name=PAPER_TABLES),
            caption="../../resources/captions/papers.rst",
            category="Papers' tables",
        ),
        expand(
            "<results>/tables/papers/{name}.{extension}",
            name=PAPER_TABLES,
            extension=["md", "tex"],
        ),
        references="<results>/tables/papers/references.bib",
    log:
        "<logs>/write_paper_tables.log",
    benchmark:
        "<benchmarks>/write_paper_tables.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        study=STUDY.study,
        names=STUDY.published_names(),
        backbones={
            name: backbone.extraction_params()
            for name, backbone in STUDY.backbones.items()
        },
        papers=dumped(STUDY.papers),
        published=published_digest(),
        version=VERSIONS["papers"],
    message:
        "the papers' tables"
    script:
        "../../scripts/write_paper_tables.py"
