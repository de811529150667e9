from dpprobe.json_values import hash_value
from dpprobe.results.cell_files import METRICS_FILE, STATEMENT_FILE
from dpprobe.stage_versions import VERSIONS

# The tables that the report can show.
REPORTED_TABLES = (
    "write_tables",
    "write_dataset_table",
    "write_fairness_table",
    "write_law_tables",
)


# One page for readers, made from other stages' files.
rule write_report:
    """The report of the study, one HTML page."""
    input:
        **section_inputs(),
        summaries=rules.summaries.input,
        cells=lambda wildcards: FILES.list_cells(
            FILES.list_study_cells(), [METRICS_FILE, STATEMENT_FILE]
        ),
        infos=expand("<data>/{dataset}/dataset.json", dataset=STUDY.datasets),
        manifests=expand(
            "<results>/features/{dataset}/{backbone}/{split}/manifest.json",
            dataset=STUDY.datasets,
            backbone=STUDY.backbones,
            split=["train", "test"],
        ),
        tables=lambda wildcards: [*study_tables(REPORTED_TABLES), *shown_paper_tables()],
        figures=later(study_figures),
        zero_shot=later(of_all_datasets, FILES.list_zero_shot),
    output:
        "<results>/report.html",
    log:
        "<logs>/write_report.log",
    benchmark:
        "<benchmarks>/write_report.tsv"
    conda:
        "../../envs/report.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000, factor=4.0),
        runtime=minutes(20),
    params:
        study=STUDY.study,
        config=hash_value(dumped(STUDY)),
        call=CALL,
        version=VERSIONS["report"],
    message:
        "report of study {params.study}"
    script:
        "../../scripts/write_report.py"


# The rule is not called `report`, the name of Snakemake's function in rule files.
rule html_report:
    """The report of the study."""
    input:
        "<results>/report.html",
