# Copies of a dataset in which one class is rare: what is left of the class at each epsilon. Not private.
rule compare_rare_classes:
    input:
        cells=lambda wildcards: cell_paths(
            rare_cells(wildcards.dataset, wildcards.backbone),
            [METRICS_FILE, PREDICTIONS_FILE],
        ),
        marks=lambda wildcards: job_marks(
            rare_cells(wildcards.dataset, wildcards.backbone)
        ),
        infos=lambda wildcards: expand(
            "<data>/{name}/dataset.json", name=with_rare(wildcards.dataset)
        ),
        manifests=lambda wildcards: [
            manifest_path(name, wildcards.backbone, "train")
            for name in with_rare(wildcards.dataset)
        ],
        # rows whose gradients are looked at
        shards=lambda wildcards: [
            path
            for name in with_rare(wildcards.dataset)
            for path in shard_paths(name, wildcards.backbone, "train")
        ],
    output:
        record=f"<results>/{IMBALANCE}/{{dataset}}/{{backbone}}.json",
        table=f"<results>/{IMBALANCE}/{{dataset}}/{{backbone}}.parquet",
    log:
        "<logs>/compare_rare_classes/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/compare_rare_classes/{dataset}/{backbone}.tsv"
    wildcard_constraints:
        dataset=names(IMBALANCED),
    conda:
        "../../envs/dpprobe.yaml"
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


rule plot_imbalance:
    input:
        f"<results>/{IMBALANCE}/{{dataset}}/{{backbone}}.json",
    output:
        svg="<results>/figures/{dataset}/imbalance_{backbone}.svg",
        png=report(
            "<results>/figures/{dataset}/imbalance_{backbone}.png",
            caption="../../resources/captions/imbalance.rst",
            category="Rare classes",
            subcategory="{dataset}",
            labels={"backbone": "{backbone}", "figure": "recall"},
        ),
        law_svg="<results>/figures/{dataset}/imbalance_law_{backbone}.svg",
        law_png=report(
            "<results>/figures/{dataset}/imbalance_law_{backbone}.png",
            caption="../../resources/captions/imbalance_law.rst",
            category="Rare classes",
            subcategory="{dataset}",
            labels={"backbone": "{backbone}", "figure": "law"},
        ),
    log:
        "<logs>/plot_imbalance/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/plot_imbalance/{dataset}/{backbone}.tsv"
    wildcard_constraints:
        dataset=names(IMBALANCED),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "figures of rare classes of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/plot_imbalance.py"


rule write_imbalance_tables:
    input:
        lambda wildcards: imbalance_files(wildcards.dataset, (".json",)),
    output:
        csv=report(
            "<results>/tables/{dataset}_imbalance.csv",
            caption="../../resources/captions/imbalance.rst",
            category="Rare classes",
            subcategory="{dataset}",
            labels={"backbone": "all", "figure": "table"},
        ),
        markdown="<results>/tables/{dataset}_imbalance.md",
    log:
        "<logs>/write_imbalance_tables/{dataset}.log",
    benchmark:
        "<benchmarks>/write_imbalance_tables/{dataset}.tsv"
    wildcard_constraints:
        dataset=names(IMBALANCED),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["tables"],
    message:
        "tables of rare classes of {wildcards.dataset}"
    script:
        "../../scripts/write_imbalance_tables.py"


rule imbalance:
    input:
        later(of_all_datasets, imbalance_outputs),


for dataset in IMBALANCED:

    rule:
        name:
            f"imbalance_{dataset}"
        input:
            later(imbalance_outputs, dataset),
