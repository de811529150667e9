# One page for people, made of what other stages wrote.
rule write_report:
    input:
        summaries=rules.summaries.input,
        statements=cell_paths(STUDY.cells(), [STATEMENT_FILE]),
        marks=job_marks(STUDY.cells()),
        infos=expand("<data>/{dataset}/dataset.json", dataset=STUDY.datasets),
        manifests=expand(
            "<results>/features/{dataset}/{backbone}/{split}/manifest.json",
            dataset=STUDY.datasets,
            backbone=STUDY.backbones,
            split=["train", "test"],
        ),
        tables=[*rules.tables.input, *target_files("paper_tables")],
        # without the overlap figures: private photographs, and people send the page around
        figures=[
            path
            for path in rules.figures.input
            if not Path(path).name.startswith("overlap_")
        ],
        zero_shot=target_files("zero_shot"),
    output:
        "<results>/report.html",
    log:
        "<logs>/write_report.log",
    benchmark:
        "<benchmarks>/write_report.tsv"
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
        "<results>/report.html",
        tsne_pages(STUDY.datasets),
