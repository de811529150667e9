# One job compares the groups of every cell of a (dataset, backbone): their differences are paired, in the same
# resamples of the test units. What it reads is test rows, what it writes is not private.
rule compare_groups:
    input:
        metrics=lambda wildcards: cell_paths(compared_cells(wildcards), [METRICS_FILE]),
        predictions=lambda wildcards: cell_paths(
            compared_cells(wildcards), [PREDICTIONS_FILE]
        ),
        marks=lambda wildcards: job_marks(compared_cells(wildcards)),
    output:
        record=f"<results>/{FAIRNESS}/{{dataset}}/{{backbone}}{RECORD_SUFFIX}",
        table=f"<results>/{FAIRNESS}/{{dataset}}/{{backbone}}{TABLE_SUFFIX}",
    log:
        "<logs>/compare_groups/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/compare_groups/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 2
    resources:
        mem_mb=fairness_memory,
        runtime=fairness_minutes,
    params:
        options=dumped(STUDY.fairness) if STUDY.fairness else None,
        references=compared_references,
        seed=STUDY.seed,
        version=VERSIONS["fairness"],
    message:
        "groups of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/compare_groups.py"


rule fairness:
    input:
        later(of_all_datasets, fairness_files),


for dataset in STUDY.datasets:

    rule:
        name:
            f"fairness_{dataset}"
        input:
            later(fairness_files, dataset),
