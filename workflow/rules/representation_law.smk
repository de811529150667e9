LAW_DATASETS, LAW_BACKBONES = law_datasets(STUDY), law_backbones(STUDY)
LAW_NETWORKS = [list(network) for network in list_law_networks(STUDY)]


def law_files(dataset, suffixes=LAW_SUFFIXES):
    """The measurements of the laws of one dataset, where the study asks for them."""
    return [
        str(law_path(f"<results>/{LAYERS}", dataset, backbone, suffix))
        for backbone in (LAW_BACKBONES if dataset in LAW_DATASETS else ())
        for suffix in suffixes
    ]


def law_cells(wildcards):
    """The cells whose first networks are measured, of a (dataset, backbone)."""
    return [
        Cell(wildcards.dataset, wildcards.backbone, *network)
        for network in LAW_NETWORKS
    ]


def law_networks_paths(wildcards):
    """The files of the tuned networks of a (dataset, backbone) whose laws are measured."""
    return [
        str(network_folder(f"<results>/{NETWORKS_FOLDER}", cell, 0) / name)
        for cell in law_cells(wildcards)
        for name in NETWORK_FILES
    ]


def law_networks_marks(wildcards):
    """The marks of the jobs that train these networks."""
    folders = [
        network_folder(f"<results>/{NETWORKS_FOLDER}", cell, 0)
        for cell in law_cells(wildcards)
    ]
    return [f"{folder.parent}/.{folder.name}.done" for folder in folders]


def law_outputs(dataset):
    """All that is made of the laws of one dataset."""
    made = exhibit_paths(dataset, names=("write_law_tables", "plot_law"))
    return [*law_files(dataset), *list_law_marks(FILES, dataset), *made]


# Representation laws of the frozen network and the tuned ones of each (dataset, backbone): not private, and only where
# a study asks.
rule measure_law:
    input:
        train="<data>/{dataset}/train.parquet",
        test="<data>/{dataset}/test.parquet",
        weights=lambda wildcards: STUDY.backbones[wildcards.backbone].input_files(),
        networks=lambda wildcards: law_networks_paths(wildcards),
        marks=lambda wildcards: law_networks_marks(wildcards),
    output:
        # as in training: what is current is kept, and the mark is missing where the job failed
        rows=update(f"<results>/{LAYERS}/{{dataset}}/{{backbone}}/law.parquet"),
        record=update(f"<results>/{LAYERS}/{{dataset}}/{{backbone}}/law.json"),
        done=touch(f"<results>/{LAYERS}/{{dataset}}/{{backbone}}/.law.done"),
    log:
        "<logs>/measure_law/{dataset}/{backbone}.log",
    benchmark:
        "<benchmarks>/measure_law/{dataset}/{backbone}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: network_threads
    resources:
        mem_mb=law_memory,
        runtime=law_minutes,
    params:
        options=dumped(STUDY.representation_law) if STUDY.representation_law else None,
        networks=LAW_NETWORKS,
        methods={method: dumped(STUDY.methods[method]) for method, _ in LAW_NETWORKS},
        backbone=lambda wildcards: STUDY.backbones[
            wildcards.backbone
        ].extraction_params(),
        seed=STUDY.seed,
        version=VERSIONS["representation_law"],
    message:
        "representation laws of {wildcards.dataset}, {wildcards.backbone}"
    script:
        "../../scripts/measure_law.py"


rule representation_law:
    input:
        later(of_all_datasets, law_outputs),


for dataset in LAW_DATASETS:

    rule:
        name:
            f"representation_law_{dataset}"
        input:
            later(law_outputs, dataset),
