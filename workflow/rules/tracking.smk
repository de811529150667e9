# The only writer of MLflow's store: training jobs write files, this rule reads them.
rule track:
    input:
        metrics=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), ["metrics.json"]
        ),
        statements=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), ["privacy.json"]
        ),
        histories=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), ["history.parquet"]
        ),
        predictions=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), ["predictions.parquet"]
        ),
        marks=lambda wildcards: job_marks(dataset_cells(wildcards.dataset)),
        info=f"{DATA}/{{dataset}}/dataset.json",
        tables=[
            f"{RESULTS}/tables/{{dataset}}_accuracy.csv",
            f"{RESULTS}/tables/{{dataset}}_accuracy.md",
        ],
        figures=expand(
            f"{RESULTS}/figures/{{{{dataset}}}}/{{name}}.png", name=dataset_figures()
        ),
        tsne=expand(
            f"{RESULTS}/figures/{{{{dataset}}}}/tsne_{{backbone}}.{{format}}",
            backbone=STUDY.backbones,
            format=["png", "html"],
        ),
    output:
        f"{RESULTS}/tracking/{{dataset}}.json",
    log:
        f"{RESULTS}/logs/track/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/track/{{dataset}}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500),
        runtime=minutes(120),  # an hour of it for other writers of a SQLite store
    params:
        uri=STUDY.tracking.uri,
        study=STUDY.study,
        backbones=list(STUDY.backbones),
        register=dumped(STUDY.tracking)["register_heads"],
        version=VERSIONS["tracking"],
    message:
        "MLflow runs of {wildcards.dataset}"
    script:
        "../../scripts/track.py"


# The study as a whole: one run with its report and its tables.
rule study_run:
    input:
        report=f"{RESULTS}/report.html",
        summaries=rules.summaries.input,
        infos=expand(f"{DATA}/{{dataset}}/dataset.json", dataset=STUDY.datasets),
        tables=[*rules.tables.input, *target_files("paper_tables")],
        # One writer at a time: SQLite makes the others wait, and a new database takes only one.
        datasets=expand(f"{RESULTS}/tracking/{{dataset}}.json", dataset=STUDY.datasets),
    output:
        f"{RESULTS}/tracking/_study.json",
    log:
        f"{RESULTS}/logs/study_run.log",
    benchmark:
        f"{RESULTS}/benchmarks/study_run.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500),
        runtime=minutes(80),
    params:
        uri=STUDY.tracking.uri,
        study=STUDY.study,
        version=VERSIONS["tracking"],
    message:
        "MLflow run of study {params.study}"
    script:
        "../../scripts/track_study.py"
