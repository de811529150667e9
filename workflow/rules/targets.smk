# Named targets: `snakemake features`, `snakemake heads`, ... make one stage of the study;
# `snakemake track_<dataset>` makes all of one dataset. Every file a person may delete is listed, so that
# deleting it makes it again.


rule data:
    input:
        expand(
            "<data>/{dataset}/{file}",
            dataset=STUDY.datasets,
            file=["train.parquet", "test.parquet", "dataset.json"],
        ),


rule features:
    input:
        [
            path
            for dataset in STUDY.datasets
            for backbone in STUDY.backbones
            for split in ("train", "test")
            for path in (
                *shard_paths(dataset, backbone, split),
                manifest_path(dataset, backbone, split),
            )
        ],


rule texts:
    input:
        expand(
            "<results>/features/{dataset}/{backbone}/text.safetensors",
            dataset=STUDY.datasets,
            backbone=TEXT_BACKBONES,
        ),


rule overlaps:
    input:
        expand(
            "<results>/overlap/{dataset}/{backbone}.{extension}",
            dataset=STUDY.datasets,
            backbone=OVERLAP_BACKBONES,
            extension=["json", "parquet"],
        ),


rule calibrations:
    input:
        expand(
            "<results>/calibration/{dataset}/eps-{epsilon}.json",
            dataset=STUDY.datasets,
            epsilon=STUDY.job_epsilons(),
        ),


rule heads:
    input:
        rules.calibrations.input,
        cell_paths(STUDY.cells()),
        job_marks(STUDY.cells()),


rule embeddings:
    input:
        expand(
            "<results>/embeddings/{dataset}/{backbone}/tsne.parquet",
            dataset=STUDY.datasets,
            backbone=STUDY.backbones,
        ),


rule summaries:
    input:
        expand("<results>/summary/{dataset}.parquet", dataset=STUDY.datasets),


rule tables:
    input:
        rules.summaries.input,
        "<results>/tables/accuracy.csv",
        "<results>/tables/accuracy.md",
        expand(
            "<results>/tables/{dataset}_accuracy.{extension}",
            dataset=STUDY.datasets,
            extension=["csv", "md"],
        ),


rule zero_shot:
    input:
        [path for dataset in STUDY.datasets for path in zero_shot_paths(dataset)],


rule few_shot:
    input:
        [path for dataset in STUDY.datasets for path in few_shot_paths(dataset)],


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
        [path for dataset in STUDY.datasets for path in figure_paths(dataset)],


rule tracking:
    input:
        expand("<results>/tracking/{dataset}.json", dataset=STUDY.datasets),
        "<results>/tracking/_study.json",


for dataset in STUDY.datasets:

    rule:
        name:
            f"track_{dataset}"
        input:
            f"<results>/tracking/{dataset}.json",
            figure_paths(dataset),
            zero_shot_paths(dataset),
            few_shot_paths(dataset),
