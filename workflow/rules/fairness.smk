def compared_cells(wildcards):
    """The cells of a (dataset, backbone) whose groups are compared."""
    features = (wildcards.dataset, wildcards.backbone)
    return [cell for cell in fairness_cells(STUDY) if cell[:2] == features]


def compared_references(wildcards):
    """[method, epsilon, reference's method, its epsilon] of the cells whose gaps are compared with another's."""
    pairs = [
        ((cell.method, cell.epsilon), reference_of(STUDY, cell.method, cell.epsilon))
        for cell in compared_cells(wildcards)
    ]
    return [[*key, *reference] for key, reference in pairs if reference]


# One job compares the groups of every cell of a (dataset, backbone): their differences are paired, in the same
# resamples of the test units. What it reads is test rows, what it writes is not private.
rule compare_groups:
    input:
        metrics=lambda wildcards: FILES.list_cells(
            compared_cells(wildcards), [METRICS_FILE]
        ),
        predictions=lambda wildcards: FILES.list_cells(
            compared_cells(wildcards), [PREDICTIONS_FILE]
        ),
        marks=lambda wildcards: FILES.list_marks(compared_cells(wildcards)),
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
        later(of_all_datasets, partial(list_fairness_files, FILES)),


for dataset in STUDY.datasets:

    rule:
        name:
            f"fairness_{dataset}"
        input:
            later(list_fairness_files, FILES, dataset),
