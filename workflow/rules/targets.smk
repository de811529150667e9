# Named targets: `snakemake features`, `snakemake heads`, ... make one stage of the study; `snakemake track_<dataset>`
# makes everything for one dataset. Targets list every file that a user may delete, because Snakemake recreates an
# unlisted missing file only if files made from it are missing too.

from functools import partial

from dpprobe.analyses.representation_law import list_law_records


rule data:
    """Split tables of every dataset."""
    input:
        later(of_all_datasets, FILES.list_tables),


rule features:
    """Features of every dataset and backbone."""
    input:
        later(of_all_datasets, FILES.list_features),


rule texts:
    """Embeddings of class names, for backbones that read text."""
    input:
        later(of_all_datasets, FILES.list_texts),


rule overlaps:
    """Near-duplicates of public images, where the study looks for them."""
    input:
        later(of_all_datasets, FILES.list_overlaps),


rule calibrations:
    """Noise of every method at every epsilon."""
    input:
        later(of_all_datasets, FILES.list_calibrations),


rule heads:
    """Cells of every dataset, backbone, method and epsilon, with the networks that they need."""
    input:
        rules.calibrations.input,
        rules.cuts.input,
        rules.searches.input,
        of_cells(FILES.list_cells),
        of_cells(FILES.list_networks),


rule networks:
    """Fine-tuned networks of every seed."""
    input:
        of_cells(FILES.list_networks),


rule summaries:
    """One table of cells per dataset."""
    input:
        FILES.list_summaries(),


rule tables:
    """Tables that people read."""
    input:
        later(study_tables),


rule paper_tables:
    """Tables of papers, with published numbers."""
    input:
        rules.write_paper_tables.output,


rule figures:
    """Every figure."""
    input:
        later(study_figures),


rule tracking:
    """MLflow runs of every dataset and of the study."""
    input:
        expand("<results>/tracking/{dataset}.json", dataset=STUDY.datasets),
        "<results>/tracking/_study.json",


for dataset in STUDY.datasets:

    rule:
        name:
            f"track_{dataset}"
        input:
            later(FILES.list_tables, dataset),
            later(FILES.list_features, dataset),
            later(FILES.list_texts, dataset),
            later(FILES.list_overlaps, dataset),
            later(FILES.list_calibrations, dataset),
            of_cells(FILES.list_cells, dataset),
            later(FILES.list_cuts, dataset),
            of_cells(FILES.list_searches, dataset),
            of_cells(FILES.list_networks, dataset),
            later(audit_files, dataset),
            *(later(dataset_outputs, analysis, dataset) for analysis in MEASURED),
            later(partial(list_law_records, FILES), dataset),
            later(imbalance_outputs, dataset),
            f"<results>/summary/{dataset}.parquet",
            later(table_paths, dataset),
            later(figure_paths, dataset),
            f"<results>/tracking/{dataset}.json",

    describe_rule(f"track_{dataset}", f"everything of {dataset}, up to its MLflow runs")

    rule:
        name:
            f"heads_{dataset}"
        input:
            later(FILES.list_calibrations, dataset),
            later(FILES.list_cuts, dataset),
            of_cells(FILES.list_searches, dataset),
            of_cells(FILES.list_cells, dataset),
            of_cells(FILES.list_networks, dataset),

    describe_rule(f"heads_{dataset}", f"cells of {dataset}, with their networks")


# Targets of one dataset in one stage, or of one release: (name, function that lists files, its argument, text).
NAMED_TARGETS = [
    *(
        (f"data_{of}", FILES.list_tables, of, f"split tables of {of}")
        for of in STUDY.datasets
    ),
    *(
        (f"features_{of}", FILES.list_features, of, f"features of {of}")
        for of in STUDY.datasets
    ),
    *((f"audit_{of}", audit_files, of, f"audits of {of}") for of in STUDY.datasets),
    *(
        (f"imbalance_{of}", imbalance_outputs, of, f"rare classes of {of}")
        for of in IMBALANCED
    ),
    *(
        (f"representation_law_{of}", law_outputs, of, f"representation laws of {of}")
        for of in LAW_DATASETS
    ),
    *((f"release_{of}", release_paths, of, f"release {of}") for of in STUDY.releases),
]

for target, paths, of, words in NAMED_TARGETS:

    rule:
        name:
            target
        input:
            later(paths, of),

    describe_rule(target, words)
