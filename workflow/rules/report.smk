# One page for people, made of what other stages wrote.
rule write_report:
    input:
        summaries=rules.summaries.input,
        # the statements of all cells, which the marks stand for
        marks=lambda wildcards: job_marks(study_cells()),
        infos=expand("<data>/{dataset}/dataset.json", dataset=STUDY.datasets),
        manifests=expand(
            "<results>/features/{dataset}/{backbone}/{split}/manifest.json",
            dataset=STUDY.datasets,
            backbone=STUDY.backbones,
            split=["train", "test"],
        ),
        tables=lambda wildcards: [*study_tables(), *shown_paper_tables()],
        # without the overlap figures: private photographs, and people send the page around
        figures=lambda wildcards: [
            path
            for path in study_figures()
            if not Path(path).name.startswith("overlap_")
        ],
        zero_shot=later(of_all_datasets, zero_shot_paths),
        audits=later(of_all_datasets, audit_paths),
        audit_marks=later(of_all_datasets, audit_marks),
        long_tails=later(long_tail_records),
        laws=later(of_all_datasets, law_records),
        law_marks=later(of_all_datasets, law_marks),
        fairness=later(of_all_datasets, fairness_records),
        fairness_tables=later(of_all_datasets, fairness_files),
        costly_images=later(of_all_datasets, costly_image_paths),
        imbalance=later(of_all_datasets, imbalance_files, (".json",)),
        imbalance_tables=later(of_all_datasets, imbalance_tables),
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
        call=CALL,
        version=VERSIONS["report"],
    message:
        "report of study {params.study}"
    script:
        "../../scripts/write_report.py"


# Private, as the images are: made only where the study asks for them, and not marked for Snakemake's report.
rule write_costly_images:
    input:
        metrics=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), [METRICS_FILE]
        ),
        predictions=lambda wildcards: cell_paths(
            dataset_cells(wildcards.dataset), [PREDICTIONS_FILE]
        ),
        marks=lambda wildcards: job_marks(dataset_cells(wildcards.dataset)),
        images="<data>/{dataset}/test.parquet",
    output:
        "<results>/costly_images/{dataset}.json",
    log:
        "<logs>/write_costly_images/{dataset}.log",
    benchmark:
        "<benchmarks>/write_costly_images/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=minutes(10, per_gb=10),
    params:
        shown=STUDY.report.costly_images,
        version=VERSIONS["costly_images"],
    message:
        "test images of {wildcards.dataset} that privacy costs most"
    script:
        "../../scripts/write_costly_images.py"


# Not called `report`, which in a rule file is Snakemake's own function.
rule html_report:
    input:
        "<results>/report.html",
        tsne_pages(STUDY.datasets),
