# The papers' tables and figures, from whatever the study ran.


rule write_paper_tables:
    input:
        metrics=cell_paths(STUDY.cells(), ["metrics.json"]),
        marks=job_marks(STUDY.cells()),
        zero_shot=expand(
            f"{RESULTS}/zero_shot/{{dataset}}/{{backbone}}/metrics.json",
            dataset=STUDY.datasets,
            backbone=TEXT_BACKBONES,
        ),
        few_shot=expand(
            f"{RESULTS}/few_shot/{{dataset}}/{{backbone}}.json",
            dataset=STUDY.datasets,
            backbone=STUDY.few_shot_backbones(),
        ),
    output:
        report(
            expand(f"{RESULTS}/tables/papers/{{name}}.csv", name=PAPER_TABLES),
            caption="../../resources/captions/papers.rst",
            category="Papers' tables",
        ),
        expand(
            f"{RESULTS}/tables/papers/{{name}}.{{extension}}",
            name=PAPER_TABLES,
            extension=["md", "tex"],
        ),
        references=f"{RESULTS}/tables/papers/references.bib",
    log:
        f"{RESULTS}/logs/write_paper_tables.log",
    benchmark:
        f"{RESULTS}/benchmarks/write_paper_tables.tsv"
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


rule plot_methods:
    input:
        f"{RESULTS}/summary/{{dataset}}.parquet",
    output:
        svg=f"{RESULTS}/figures/{{dataset}}/methods.svg",
        png=report(
            f"{RESULTS}/figures/{{dataset}}/methods.png",
            caption="../../resources/captions/methods.rst",
            category="Methods",
            labels={"dataset": "{dataset}"},
        ),
    log:
        f"{RESULTS}/logs/plot_methods/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/plot_methods/{{dataset}}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        figure="method_comparison",
        version=VERSIONS["figures"],
    message:
        "methods over epsilon, {wildcards.dataset}"
    script:
        "../../scripts/plot_summary.py"


use rule plot_methods as plot_gap with:
    output:
        svg=f"{RESULTS}/figures/{{dataset}}/gap.svg",
        png=report(
            f"{RESULTS}/figures/{{dataset}}/gap.png",
            caption="../../resources/captions/gap.rst",
            category="Gap to the non-private ceiling",
            labels={"dataset": "{dataset}"},
        ),
    log:
        f"{RESULTS}/logs/plot_gap/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/plot_gap/{{dataset}}.tsv"
    params:
        figure="ceiling_gap",
        version=VERSIONS["figures"],
    message:
        "gap to the non-private ceiling, {wildcards.dataset}"


rule plot_option:
    input:
        metrics=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), ["metrics.json"]
        ),
        marks=lambda wildcards: job_marks(dataset_cells(wildcards.dataset)),
    output:
        svg=f"{RESULTS}/figures/{{dataset}}/by_{{option}}.svg",
        png=report(
            f"{RESULTS}/figures/{{dataset}}/by_{{option}}.png",
            caption="../../resources/captions/option.rst",
            category="Options",
            subcategory="{option}",
            labels={"dataset": "{dataset}"},
        ),
    log:
        f"{RESULTS}/logs/plot_option/{{dataset}}/{{option}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/plot_option/{{dataset}}/{{option}}.tsv"
    wildcard_constraints:
        option=names(VARIED_OPTIONS),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "results of {wildcards.dataset} by {wildcards.option}"
    script:
        "../../scripts/plot_option.py"


rule plot_tsne_grid:
    input:
        expand(
            f"{RESULTS}/embeddings/{{dataset}}/{{backbone}}/tsne.parquet",
            dataset=STUDY.datasets,
            backbone=STUDY.backbones,
        ),
    output:
        svg=f"{RESULTS}/figures/tsne.svg",
        png=report(
            f"{RESULTS}/figures/tsne.png",
            caption="../../resources/captions/tsne.rst",
            category="t-SNE",
            labels={"backbone": "all"},
        ),
    log:
        f"{RESULTS}/logs/plot_tsne_grid.log",
    benchmark:
        f"{RESULTS}/benchmarks/plot_tsne_grid.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500),
        runtime=minutes(20),
    params:
        split=STUDY.tsne.split,
        version=VERSIONS["figures"],
    message:
        "t-SNE of every dataset and backbone"
    script:
        "../../scripts/plot_tsne_grid.py"
