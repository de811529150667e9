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
        marks=lambda wildcards: job_marks(dataset_cells(wildcards.dataset)),
        info=f"{DATA}/{{dataset}}/dataset.json",
        tables=[
            f"{RESULTS}/tables/{{dataset}}_accuracy.csv",
            f"{RESULTS}/tables/{{dataset}}_accuracy.md",
        ],
        accuracy=expand(
            f"{RESULTS}/figures/{{{{dataset}}}}/accuracy.{{format}}",
            format=["png", "svg"],
        ),
        tsne=expand(
            f"{RESULTS}/figures/{{{{dataset}}}}/tsne_{{backbone}}.png",
            backbone=STUDY.backbones,
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
        runtime=minutes(60),
    params:
        uri=STUDY.tracking.uri,
        study=STUDY.study,
        backbones=list(STUDY.backbones),
        version=VERSIONS["tracking"],
    message:
        "MLflow runs of {wildcards.dataset}"
    script:
        "../../scripts/track.py"
