from dpprobe.analyses.audit import list_audit_records
from dpprobe.analyses.audit.audit_record import RECORD_SUFFIX
from dpprobe.analyses.fairness import list_fairness_files
from dpprobe.stage_versions import VERSIONS

# Figures that MLflow shows in the run of a dataset, in addition to the t-SNE plot of each backbone.
TRACKED_FIGURES = (
    "plot_accuracy",
    "plot_option",
    "plot_fairness",
    "plot_comparison",
    "plot_dataset_tsne",
)


# Only the rules in this file write to MLflow's store; they read files from other jobs.
rule track:
    """MLflow runs of a dataset."""
    input:
        cells=of_dataset_cells(FILES.list_cells),
        audits=lambda wildcards: list_audit_records(FILES, wildcards.dataset),
        info="<data>/{dataset}/dataset.json",
        fairness=lambda wildcards: list_fairness_files(
            FILES, wildcards.dataset, [RECORD_SUFFIX]
        ),
        tables=lambda wildcards: table_paths(wildcards.dataset),
        figures=lambda wildcards: [
            path
            for path in exhibit_paths(wildcards.dataset, names=TRACKED_FIGURES)
            if path.endswith(".png")
        ],
        tsne=expand(
            "<results>/figures/{dataset}/tsne_{backbone}.png",
            backbone=STUDY.backbones,
            allow_missing=True,
        ),
        zero_shot=lambda wildcards: FILES.list_zero_shot_records(wildcards.dataset),
        few_shot=lambda wildcards: FILES.list_few_shot_records(wildcards.dataset),
    output:
        "<results>/tracking/{dataset}.json",
    log:
        "<logs>/track/{dataset}.log",
    benchmark:
        "<benchmarks>/track/{dataset}.tsv"
    localrule: IN_STORAGE
    conda:
        "../../envs/report.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500),
        runtime=minutes(120),  # includes an hour of waiting for other writers of a SQLite store
    params:
        uri=STUDY.tracking.uri,
        study=STUDY.study,
        version=VERSIONS["tracking"],
    message:
        "MLflow runs of {wildcards.dataset}"
    script:
        "../../scripts/track.py"


# One MLflow run for the whole study, with its report and tables.
rule write_study_run:
    """MLflow run of the study, with its report and tables."""
    input:
        report="<results>/report.html",
        summaries=rules.summaries.input,
        infos=expand("<data>/{dataset}/dataset.json", dataset=STUDY.datasets),
        tables=lambda wildcards: [*study_tables(), *shown_paper_tables()],
        # One writer at a time: SQLite makes other writers wait, and a new database accepts only one.
        datasets=expand("<results>/tracking/{dataset}.json", dataset=STUDY.datasets),
    output:
        "<results>/tracking/_study.json",
    log:
        "<logs>/write_study_run.log",
    benchmark:
        "<benchmarks>/write_study_run.tsv"
    localrule: IN_STORAGE
    conda:
        "../../envs/report.yaml"
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
        "../../scripts/write_study_run.py"


# An MLflow run of a complete release, with card, bundle and guarantee.
rule track_release:
    """MLflow run of a release."""
    input:
        made="<results>/releases/.{release}.done",
        predecessor=ancient(tracked_predecessor),
    output:
        "<results>/tracking/releases/{release}.json",
    log:
        "<logs>/track_release/{release}.log",
    benchmark:
        "<benchmarks>/track_release/{release}.tsv"
    localrule: IN_STORAGE
    conda:
        "../../envs/report.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500),
        runtime=minutes(80),
    params:
        uri=STUDY.tracking.uri,
        study=STUDY.study,
        version=VERSIONS["tracking"],
    message:
        "MLflow model of release {wildcards.release}"
    script:
        "../../scripts/track_release.py"
