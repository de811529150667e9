# Named targets: `snakemake features`, `snakemake heads`, ... make one stage of the study;
# `snakemake track_<dataset>` makes all of one dataset. Every file a person may delete is listed, so that
# deleting it makes it again: Snakemake lets a missing file be while what was made of it is there.


rule data:
    input:
        later(of_all_datasets, FILES.list_tables),


rule features:
    input:
        later(of_all_datasets, FILES.list_features),


rule texts:
    input:
        later(of_all_datasets, FILES.list_texts),


rule overlaps:
    input:
        later(of_all_datasets, FILES.list_overlaps),


rule calibrations:
    input:
        later(of_all_datasets, FILES.list_calibrations),


rule heads:
    input:
        rules.calibrations.input,
        rules.cuts.input,
        rules.searches.input,
        lambda wildcards: FILES.list_marks(FILES.list_study_cells()),
        lambda wildcards: FILES.list_networks(FILES.list_study_cells()),
        lambda wildcards: FILES.list_network_marks(FILES.list_study_cells()),


# each seed's network
rule networks:
    input:
        lambda wildcards: FILES.list_networks(FILES.list_study_cells()),
        lambda wildcards: FILES.list_network_marks(FILES.list_study_cells()),


rule summaries:
    input:
        FILES.list_summaries(),


rule tables:
    input:
        later(study_tables),


rule paper_tables:
    input:
        rules.write_paper_tables.output,


rule figures:
    input:
        later(study_figures),


rule tracking:
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
            lambda wildcards, dataset=dataset: FILES.list_marks(
                FILES.list_study_cells(dataset)
            ),
            later(FILES.list_cuts, dataset),
            lambda wildcards, dataset=dataset: FILES.list_searches(
                FILES.list_study_cells(dataset)
            ),
            lambda wildcards, dataset=dataset: FILES.list_networks(
                FILES.list_study_cells(dataset)
            ),
            lambda wildcards, dataset=dataset: FILES.list_network_marks(
                FILES.list_study_cells(dataset)
            ),
            later(audit_files, dataset),
            lambda wildcards, dataset=dataset: [
                path
                for analysis in MEASURED
                for path in dataset_outputs(analysis, dataset)
            ],
            later(partial(list_law_records, FILES), dataset),
            later(imbalance_outputs, dataset),
            f"<results>/summary/{dataset}.parquet",
            later(table_paths, dataset),
            later(figure_paths, dataset),
            f"<results>/tracking/{dataset}.json",
