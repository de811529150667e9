rule summarise:
    input:
        metrics=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), ["metrics.json"]
        ),
        marks=lambda wildcards: job_marks(dataset_cells(wildcards.dataset)),
    output:
        f"{RESULTS}/summary/{{dataset}}.parquet",
    log:
        f"{RESULTS}/logs/summarise/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/summarise/{{dataset}}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        study=STUDY.study,
        version=VERSIONS["summary"],
    message:
        "summary of {wildcards.dataset}"
    script:
        "../../scripts/summarise.py"


rule plot_accuracy:
    input:
        f"{RESULTS}/summary/{{dataset}}.parquet",
    output:
        svg=f"{RESULTS}/figures/{{dataset}}/accuracy.svg",
        png=report(
            f"{RESULTS}/figures/{{dataset}}/accuracy.png",
            caption="../../resources/captions/accuracy.rst",
            category="Accuracy against epsilon",
            labels={"dataset": "{dataset}"},
        ),
    log:
        f"{RESULTS}/logs/plot_accuracy/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/plot_accuracy/{{dataset}}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        name=lambda wildcards: STUDY.published_names()[wildcards.dataset],
        published=published_digest(),
        version=VERSIONS["figures"],
    message:
        "accuracy against epsilon, {wildcards.dataset}"
    script:
        "../../scripts/plot_accuracy.py"


rule write_dataset_table:
    input:
        f"{RESULTS}/summary/{{dataset}}.parquet",
    output:
        csv=report(
            f"{RESULTS}/tables/{{dataset}}_accuracy.csv",
            caption="../../resources/captions/table.rst",
            category="Tables",
            labels={"dataset": "{dataset}"},
        ),
        markdown=f"{RESULTS}/tables/{{dataset}}_accuracy.md",
    log:
        f"{RESULTS}/logs/write_dataset_table/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/write_dataset_table/{{dataset}}.tsv"
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


rule write_tables:
    input:
        expand(f"{RESULTS}/summary/{{dataset}}.parquet", dataset=STUDY.datasets),
    output:
        csv=report(
            f"{RESULTS}/tables/accuracy.csv",
            caption="../../resources/captions/table.rst",
            category="Tables",
            labels={"dataset": "all"},
        ),
        markdown=f"{RESULTS}/tables/accuracy.md",
    log:
        f"{RESULTS}/logs/write_tables.log",
    benchmark:
        f"{RESULTS}/benchmarks/write_tables.tsv"
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
