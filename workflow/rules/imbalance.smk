from dpprobe.analyses.imbalance.imbalance_record import IMBALANCE
from dpprobe.results.cell_files import METRICS_FILE, PREDICTIONS_FILE
from dpprobe.stage_versions import VERSIONS


# Measures, without privacy, the recall of a rare class at each epsilon, on copies of a dataset.
rule compare_rare_classes:
    """Accuracy of one class as it becomes rare (analysis imbalance)."""
    input:
        cells=lambda wildcards: FILES.list_cells(
            rare_cells(wildcards.dataset, wildcards.backbone),
            [METRICS_FILE, PREDICTIONS_FILE],
        ),
        infos=lambda wildcards: expand(
            "<data>/{name}/dataset.json", name=with_rare(wildcards.dataset)
        ),
    output:
        record=f"<results>/{IMBALANCE}/{{dataset}}/{{backbone}}.json",
    log:
        "<logs>/compare_rare_classes/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/compare_rare_classes/{dataset}/{backbone}.tsv"
    wildcard_constraints:
        dataset=names(IMBALANCED),
    conda:
        "../../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=imbalance_memory,
        runtime=imbalance_minutes,
    params:
        options=dumped(STUDY.imbalance) if STUDY.imbalance else None,
        version=VERSIONS["imbalance"],
    message:
        "rare classes of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/compare_rare_classes.py"


rule imbalance:
    """Rare classes of every dataset, with tables and figures."""
    input:
        later(of_all_datasets, imbalance_outputs),
