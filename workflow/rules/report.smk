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
        tables=rules.tables.input,
        figures=rules.figures.input,
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
        study=dumped(STUDY),
        call=snakemake_call(),
        version=VERSIONS["report"],
    message:
        "report of study {params.study[study]}"
    script:
        "../../scripts/write_report.py"


# Not called `report`, which in a rule file is Snakemake's own function.
rule html_report:
    input:
        f"{RESULTS}/report.html",
