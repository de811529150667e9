# Named targets: `snakemake features`, `snakemake heads`, ... make one stage of the study;
# `snakemake track_<dataset>` makes all of one dataset. Every file a person may delete is listed, so that
# deleting it makes it again: Snakemake lets a missing file be while what was made of it is there.


rule data:
    input:
        later(of_all_datasets, data_paths),


rule features:
    input:
        later(of_all_datasets, feature_paths),


rule texts:
    input:
        later(of_all_datasets, text_paths),


rule overlaps:
    input:
        later(of_all_datasets, overlap_paths),


rule calibrations:
    input:
        later(of_all_datasets, calibration_paths),


rule heads:
    input:
        rules.calibrations.input,
        rules.cuts.input,
        rules.searches.input,
        lambda wildcards: job_marks(study_cells()),
        lambda wildcards: network_paths(study_cells()),
        lambda wildcards: network_marks(study_cells()),


# each seed's network
rule networks:
    input:
        lambda wildcards: network_paths(study_cells()),
        lambda wildcards: network_marks(study_cells()),


rule embeddings:
    input:
        later(of_all_datasets, embedding_paths),


rule summaries:
    input:
        summary_paths(),


rule tables:
    input:
        later(study_tables),


rule zero_shot:
    input:
        later(of_all_datasets, zero_shot_paths),


rule few_shot:
    input:
        later(of_all_datasets, few_shot_paths),


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
            later(data_paths, dataset),
            later(feature_paths, dataset),
            later(text_paths, dataset),
            later(overlap_paths, dataset),
            later(calibration_paths, dataset),
            lambda wildcards, dataset=dataset: job_marks(dataset_cells(dataset)),
            later(cut_files, dataset),
            lambda wildcards, dataset=dataset: search_paths(dataset_cells(dataset)),
            lambda wildcards, dataset=dataset: network_paths(dataset_cells(dataset)),
            lambda wildcards, dataset=dataset: network_marks(dataset_cells(dataset)),
            later(audit_files, dataset),
            later(long_tail_paths, dataset),
            later(law_files, dataset),
            later(fairness_files, dataset),
            later(imbalance_outputs, dataset),
            later(zero_shot_paths, dataset),
            later(few_shot_paths, dataset),
            later(embedding_paths, dataset),
            f"<results>/summary/{dataset}.parquet",
            later(table_paths, dataset),
            later(figure_paths, dataset),
            later(tsne_pages, [dataset]),
            f"<results>/tracking/{dataset}.json",
