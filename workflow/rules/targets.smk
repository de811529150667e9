# Named targets: `snakemake features`, `snakemake heads`, ... make one stage of the study;
# `snakemake track_<dataset>` makes all of one dataset. Every file a person may delete is listed, so that
# deleting it makes it again: Snakemake lets a missing file be while what was made of it is there.


rule data:
    input:
        of_all_datasets(data_paths),


rule features:
    input:
        of_all_datasets(feature_paths),


rule texts:
    input:
        of_all_datasets(text_paths),


rule overlaps:
    input:
        of_all_datasets(overlap_paths),


rule calibrations:
    input:
        of_all_datasets(calibration_paths),


rule heads:
    input:
        rules.calibrations.input,
        cell_paths(STUDY.cells()),
        job_marks(STUDY.cells()),


rule embeddings:
    input:
        of_all_datasets(embedding_paths),


rule summaries:
    input:
        expand("<results>/summary/{dataset}.parquet", dataset=STUDY.datasets),


rule tables:
    input:
        rules.summaries.input,
        "<results>/tables/accuracy.csv",
        "<results>/tables/accuracy.md",
        of_all_datasets(table_paths),


rule zero_shot:
    input:
        of_all_datasets(zero_shot_paths),


rule few_shot:
    input:
        of_all_datasets(few_shot_paths),


rule paper_tables:
    input:
        rules.write_paper_tables.output,


rule figures:
    input:
        expand(
            "<results>/figures/tsne.{extension}",
            extension=(
                ["svg", "png"]
                if len(STUDY.datasets) * len(STUDY.backbones) > 1
                else []
            ),
        ),
        of_all_datasets(figure_paths),
        tsne_pages(STUDY.datasets),


rule tracking:
    input:
        expand("<results>/tracking/{dataset}.json", dataset=STUDY.datasets),
        "<results>/tracking/_study.json",


for dataset in STUDY.datasets:

    rule:
        name:
            f"track_{dataset}"
        input:
            data_paths(dataset),
            feature_paths(dataset),
            text_paths(dataset),
            overlap_paths(dataset),
            calibration_paths(dataset),
            cell_paths(dataset_cells(dataset)),
            job_marks(dataset_cells(dataset)),
            zero_shot_paths(dataset),
            few_shot_paths(dataset),
            embedding_paths(dataset),
            f"<results>/summary/{dataset}.parquet",
            table_paths(dataset),
            figure_paths(dataset),
            tsne_pages([dataset]),
            f"<results>/tracking/{dataset}.json",
