# One page for people, made of what other stages wrote.
rule write_report:
    input:
        summaries=rules.summaries.input,
        statements=cell_paths(STUDY.cells(), ["privacy.json"]),
        marks=job_marks(STUDY.cells()),
        infos=expand(f"{DATA}/{{dataset}}/dataset.json", dataset=STUDY.datasets),
        manifests=expand(
            f"{RESULTS}/features/{{dataset}}/{{backbone}}/{{split}}/manifest.json",
            dataset=STUDY.datasets,
            backbone=STUDY.backbones,
            split=["train", "test"],
        ),
        tables=[*rules.tables.input, *target_files("paper_tables")],
        # without the overlap figures: private photographs, and people send the page around
        figures=[
            *(
                path
                for path in rules.figures.input
                if not Path(path).name.startswith("overlap_")
            ),
            *tsne_pages(STUDY.datasets),
        ],
        zero_shot=target_files("zero_shot"),
    output:
        f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/write_report.log",
    benchmark:
        f"{RESULTS}/benchmarks/write_report.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000, factor=4.0),
        runtime=minutes(20),
    params:
        study=STUDY.study,
        config=fingerprint(dumped(STUDY)),
        call=snakemake_call(),
        version=VERSIONS["report"],
    message:
        "report of study {params.study}"
    script:
        "../../scripts/write_report.py"


# Not called `report`, which in a rule file is Snakemake's own function.
rule html_report:
    input:
        f"{RESULTS}/report.html",
        tsne_pages(STUDY.datasets),


# The plane to move about in. Images are in it only where the study allows it: they are private.
rule write_tsne_page:
    input:
        embedding=f"{RESULTS}/embeddings/{{dataset}}/{{backbone}}/tsne.parquet",
        images=(
            [f"{DATA}/{{dataset}}/{STUDY.tsne.split}.parquet"]
            if STUDY.tsne.thumbnails
            else []
        ),
    output:
        report(
            f"{RESULTS}/figures/{{dataset}}/tsne_{{backbone}}.html",
            caption="../../resources/captions/tsne.rst",
            category="t-SNE, interactive",
            subcategory="{dataset}",
            labels={"backbone": "{backbone}"},
        ),
    log:
        f"{RESULTS}/logs/write_tsne_page/{{dataset}}/{{backbone}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/write_tsne_page/{{dataset}}/{{backbone}}.tsv"
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
