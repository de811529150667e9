SOURCE_NAMES = {whole: name for name, whole in ALL_ROWS.items()}


def source_state(wildcards):
    """The outward state of a dataset's source, in which an image replaced in place shows."""
    if wildcards.dataset in WHOLE:
        return None
    return DATASETS[wildcards.dataset].source_state()


def download_receipt(wildcards):
    """The mark of a finished download, for a dataset that needs one."""
    if wildcards.dataset in WHOLE:
        return []
    needed = DATASETS[wildcards.dataset].download_params() is not None
    source = SOURCE_NAMES.get(wildcards.dataset, wildcards.dataset)
    return f"<data>/downloads/{source}/receipt.json" if needed else []


def whole_tables(wildcards):
    """The split tables of the dataset that this one is a part of, where the study has it whole."""
    whole = WHOLE.get(wildcards.dataset)
    return FILES.list_tables(whole) if whole else []


def all_rows(wildcards, folder, *files):
    """Files of all rows of a dataset whose near-duplicates are removed."""
    return [f"{folder}/{ALL_ROWS[wildcards.dataset]}/{name}" for name in files]


def source_files(wildcards):
    """A source's files; folders by name alone, for looking into one may change its time."""
    if wildcards.dataset in WHOLE:
        return []
    files = DATASETS[wildcards.dataset].input_files()
    return [ancient(file) if Path(file).is_dir() else file for file in files]


localrules:
    download_data,


# Downloads run where Snakemake runs: the nodes of a cluster often reach no network. What is there already is
# kept, so a new revision or a lost receipt transfers only what differs.
rule download_data:
    output:
        "<data>/downloads/{dataset}/receipt.json",
    log:
        "<logs>/download_data/{dataset}.log",
    benchmark:
        "<benchmarks>/download_data/{dataset}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
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
        dataset=names([name for name in DATASETS if name not in ALL_ROWS]),
    conda:
        "../../envs/dpprobe.yaml"
    # Every image is decoded once, to see whether it can be.
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


# Both splits without the rows that a check of all of them calls near-duplicates of public images.
rule remove_near_duplicates:
    input:
        tables=lambda wildcards: all_rows(
            wildcards, "<data>", "train.parquet", "test.parquet"
        ),
        info=lambda wildcards: all_rows(wildcards, "<data>", "dataset.json"),
        counts=lambda wildcards: all_rows(
            wildcards, "<results>/overlap", f"{STUDY.overlap.remove}.json"
        ),
        matches=lambda wildcards: all_rows(
            wildcards, "<results>/overlap", f"{STUDY.overlap.remove}.parquet"
        ),
    output:
        train="<data>/{dataset}/train.parquet",
        test="<data>/{dataset}/test.parquet",
        info="<data>/{dataset}/dataset.json",
    log:
        "<logs>/remove_near_duplicates/{dataset}.log",
    benchmark:
        "<benchmarks>/remove_near_duplicates/{dataset}.tsv"
    wildcard_constraints:
        dataset=names(ALL_ROWS),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(3000),
        runtime=minutes(30, per_gb=10),
    params:
        version=VERSIONS["removal"],
    message:
        "split tables of {wildcards.dataset} without near-duplicates of public images"
    script:
        "../../scripts/remove_near_duplicates.py"
