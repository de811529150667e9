from dpprobe.stage_versions import VERSIONS


# Downloads run on Snakemake's machine, because a cluster's nodes often have no network. Existing files are reused, so
# that only differences are transferred after a new revision or the loss of a receipt.
rule download_data:
    """Downloaded files of a dataset."""
    output:
        on_this_machine("<data>/downloads/{dataset}/receipt.json"),
    log:
        "<logs>/download_data/{dataset}.log",
    benchmark:
        "<benchmarks>/download_data/{dataset}.tsv"
    localrule: True
    conda:
        "../../envs/extraction.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(1440),
    params:
        options=lambda wildcards: DATASETS[wildcards.dataset].download_params(),
        version=VERSIONS["download"],
    message:
        "download of {wildcards.dataset}"
    script:
        "../../scripts/download_data.py"


rule prepare_data:
    """Split tables of a dataset."""
    input:
        files=source_files,
        receipt=download_receipt,
        whole=whole_tables,
    output:
        train="<data>/{dataset}/train.parquet",
        test="<data>/{dataset}/test.parquet",
        info="<data>/{dataset}/dataset.json",
    log:
        "<logs>/prepare_data/{dataset}.log",
    benchmark:
        "<benchmarks>/prepare_data/{dataset}.tsv"
    wildcard_constraints:
        dataset=names(DATASETS),
    # with a storage provider, images are on Snakemake's own machine
    localrule: IN_STORAGE
    conda:
        "../../envs/extraction.yaml"
    # Every image is decoded once, to find damaged images.
    threads: 8
    resources:
        mem_mb=preparation_memory,
        runtime=preparation_minutes,
    params:
        options=lambda wildcards: DATASETS[wildcards.dataset].preparation_params(),
        state=source_state,
        version=VERSIONS["data"],
    message:
        "split tables of {wildcards.dataset}"
    script:
        "../../scripts/prepare_data.py"
