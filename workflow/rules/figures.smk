# Every figure, from tables that other stages wrote.


rule plot_accuracy:
    input:
        "<results>/summary/{dataset}.parquet",
    output:
        svg="<results>/figures/{dataset}/accuracy.svg",
        png=report(
            "<results>/figures/{dataset}/accuracy.png",
            caption="../../resources/captions/accuracy.rst",
            category="Accuracy against epsilon",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "<logs>/plot_accuracy/{dataset}.log",
    benchmark:
        "<benchmarks>/plot_accuracy/{dataset}.tsv"
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


rule plot_methods:
    input:
        "<results>/summary/{dataset}.parquet",
    output:
        svg="<results>/figures/{dataset}/methods.svg",
        png=report(
            "<results>/figures/{dataset}/methods.png",
            caption="../../resources/captions/methods.rst",
            category="Methods",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "<logs>/plot_methods/{dataset}.log",
    benchmark:
        "<benchmarks>/plot_methods/{dataset}.tsv"
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
        svg="<results>/figures/{dataset}/gap.svg",
        png=report(
            "<results>/figures/{dataset}/gap.png",
            caption="../../resources/captions/gap.rst",
            category="Gap to the non-private ceiling",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "<logs>/plot_gap/{dataset}.log",
    benchmark:
        "<benchmarks>/plot_gap/{dataset}.tsv"
    params:
        figure="ceiling_gap",
        version=VERSIONS["figures"],
    message:
        "gap to the non-private ceiling, {wildcards.dataset}"


rule plot_option:
    input:
        marks=lambda wildcards: job_marks(dataset_cells(wildcards.dataset)),
    output:
        svg="<results>/figures/{dataset}/by_{option}.svg",
        png=report(
            "<results>/figures/{dataset}/by_{option}.png",
            caption="../../resources/captions/option.rst",
            category="Options",
            subcategory="{option}",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "<logs>/plot_option/{dataset}/{option}.log",
    benchmark:
        "<benchmarks>/plot_option/{dataset}/{option}.tsv"
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


rule plot_comparison:
    input:
        marks=lambda wildcards: job_marks(dataset_cells(wildcards.dataset)),
        manifests=comparison_manifests,
    output:
        svg="<results>/figures/{dataset}/{figure}.svg",
        png=report(
            "<results>/figures/{dataset}/{figure}.png",
            caption="../../resources/captions/comparison.rst",
            category="Backbones and labels",
            subcategory="{figure}",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "<logs>/plot_comparison/{dataset}/{figure}.log",
    benchmark:
        "<benchmarks>/plot_comparison/{dataset}/{figure}.tsv"
    wildcard_constraints:
        figure=names(DATASET_COMPARISONS),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        name=lambda wildcards: STUDY.published_names()[wildcards.dataset],
        published=published_digest(),
        backbones={
            name: backbone.extraction_params()
            for name, backbone in STUDY.backbones.items()
        },
        base=STUDY.papers.base,
        version=VERSIONS["figures"],
    message:
        "{wildcards.figure} of {wildcards.dataset}"
    script:
        "../../scripts/plot_comparison.py"


rule plot_datasets:
    input:
        metrics=lambda wildcards: cell_paths(
            compared_cells_of(wildcards.figure), [METRICS_FILE]
        ),
        marks=lambda wildcards: job_marks(compared_cells_of(wildcards.figure)),
    output:
        svg="<results>/figures/{figure}.svg",
        png=report(
            "<results>/figures/{figure}.png",
            caption="../../resources/captions/datasets.rst",
            category="Datasets",
            labels={"figure": "{figure}"},
        ),
    log:
        "<logs>/plot_datasets/{figure}.log",
    benchmark:
        "<benchmarks>/plot_datasets/{figure}.tsv"
    wildcard_constraints:
        figure=names(COMPARISONS),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        groups=DELTA_GROUPS,
        version=VERSIONS["figures"],
    message:
        "figure of all datasets: {wildcards.figure}"
    script:
        "../../scripts/plot_datasets.py"


rule plot_audit:
    input:
        audits=lambda wildcards: audit_paths(wildcards.dataset),
        marks=lambda wildcards: audit_marks(wildcards.dataset),
    output:
        svg="<results>/figures/{dataset}/audit.svg",
        png=report(
            "<results>/figures/{dataset}/audit.png",
            caption="../../resources/captions/audit.rst",
            category="Audits",
            labels={"dataset": "{dataset}"},
        ),
    log:
        "<logs>/plot_audit/{dataset}.log",
    benchmark:
        "<benchmarks>/plot_audit/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "claims and bounds of audits, {wildcards.dataset}"
    script:
        "../../scripts/plot_audit.py"


# Private, as test results are: the attacks score real training rows.
rule plot_membership:
    input:
        audit=str(
            audit_path(
                f"<results>/{AUDITS}",
                ("{dataset}", "{backbone}", "{method}", "{epsilon}"),
                RECORD_SUFFIX,
            )
        ),
        ceiling=ceiling_audit,
    output:
        svg="<results>/figures/{dataset}/membership_{backbone}-{method}-eps-{epsilon}.svg",
        png=report(
            "<results>/figures/{dataset}/membership_{backbone}-{method}-eps-{epsilon}.png",
            caption="../../resources/captions/membership.rst",
            category="Membership attacks",
            subcategory="{dataset}",
            labels={
                "backbone": "{backbone}",
                "method": "{method}",
                "epsilon": "{epsilon}",
            },
        ),
    log:
        "<logs>/plot_membership/{dataset}/{backbone}/{method}/eps-{epsilon}.log",
    benchmark:
        "<benchmarks>/plot_membership/{dataset}/{backbone}/{method}/eps-{epsilon}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "membership attacks on {wildcards.dataset}, {wildcards.backbone}, {wildcards.method}, epsilon {wildcards.epsilon}"
    script:
        "../../scripts/plot_membership.py"


rule plot_fairness:
    input:
        records=lambda wildcards: fairness_records(wildcards.dataset),
    output:
        gap_svg="<results>/figures/{dataset}/fairness_gap.svg",
        gap_png=report(
            "<results>/figures/{dataset}/fairness_gap.png",
            caption="../../resources/captions/fairness_gap.rst",
            category="Subgroups",
            labels={"dataset": "{dataset}", "against": "epsilon"},
        ),
        auc_svg="<results>/figures/{dataset}/fairness_auc.svg",
        auc_png=report(
            "<results>/figures/{dataset}/fairness_auc.png",
            caption="../../resources/captions/fairness_auc.rst",
            category="Subgroups",
            labels={"dataset": "{dataset}", "against": "quality"},
        ),
    log:
        "<logs>/plot_fairness/{dataset}.log",
    benchmark:
        "<benchmarks>/plot_fairness/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "gaps between the subgroups of {wildcards.dataset}"
    script:
        "../../scripts/plot_fairness.py"


rule plot_tsne:
    input:
        "<results>/embeddings/{dataset}/{backbone}/tsne.parquet",
    output:
        svg="<results>/figures/{dataset}/tsne_{backbone}.svg",
        png=report(
            "<results>/figures/{dataset}/tsne_{backbone}.png",
            caption="../../resources/captions/tsne.rst",
            category="t-SNE",
            subcategory="{dataset}",
            labels={"backbone": "{backbone}"},
        ),
    log:
        "<logs>/plot_tsne/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/plot_tsne/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(10),
    params:
        split=STUDY.tsne.split,
        version=VERSIONS["figures"],
    message:
        "t-SNE plot of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/plot_tsne.py"


# An interactive page. It shows images only where the study allows it: they are private.
rule write_tsne_page:
    input:
        embedding="<results>/embeddings/{dataset}/{backbone}/tsne.parquet",
        images=(
            expand(
                "<data>/{dataset}/{split}.parquet",
                split=STUDY.tsne.split,
                allow_missing=True,
            )
            if STUDY.tsne.thumbnails
            else []
        ),
    output:
        report(
            "<results>/figures/{dataset}/tsne_{backbone}.html",
            caption="../../resources/captions/tsne.rst",
            category="t-SNE, interactive",
            subcategory="{dataset}",
            labels={"backbone": "{backbone}"},
        ),
    log:
        "<logs>/write_tsne_page/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/write_tsne_page/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500),
        runtime=minutes(30),
    params:
        split=STUDY.tsne.split,
        thumbnails=STUDY.tsne.thumbnails,
        version=VERSIONS["tsne_page"],
    message:
        "t-SNE page of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/write_tsne_page.py"


rule plot_tsne_grid:
    input:
        expand(
            "<results>/embeddings/{dataset}/{backbone}/tsne.parquet",
            dataset=STUDY.datasets,
            backbone=STUDY.backbones,
        ),
    output:
        svg="<results>/figures/tsne.svg",
        png=report(
            "<results>/figures/tsne.png",
            caption="../../resources/captions/tsne.rst",
            category="t-SNE",
            labels={"backbone": "all"},
        ),
    log:
        "<logs>/plot_tsne_grid.log",
    benchmark:
        "<benchmarks>/plot_tsne_grid.tsv"
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


rule plot_overlap:
    input:
        matches="<results>/overlap/{dataset}/{backbone}.parquet",
        tables=lambda wildcards: [
            f"<data>/{dataset}/{split}.parquet"
            for dataset, split in overlap_splits(wildcards)
        ],
    output:
        svg="<results>/figures/{dataset}/overlap_{backbone}.svg",
        # private photographs: not marked for Snakemake's report, which people send around
        png="<results>/figures/{dataset}/overlap_{backbone}.png",
    log:
        "<logs>/plot_overlap/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/plot_overlap/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500),
        runtime=minutes(10),
    params:
        version=VERSIONS["figures"],
    message:
        "nearest public images of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/plot_overlap.py"
