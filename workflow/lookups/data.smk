"""Input functions and constants of data.smk."""


def source_state(wildcards):
    """Hashes names, sizes and times of a source's files, because a replaced file may have an older time."""
    if wildcards.dataset in WHOLE:
        return None
    return DATASETS[wildcards.dataset].source_state()


def download_receipt(wildcards):
    """The mark of a finished download, for a dataset that needs one."""
    if wildcards.dataset in WHOLE:
        return []
    needed = DATASETS[wildcards.dataset].download_params() is not None
    return f"<data>/downloads/{wildcards.dataset}/receipt.json" if needed else []


def whole_tables(wildcards):
    """The split tables of the whole dataset of a subsample, if the study has the whole dataset."""
    whole = WHOLE.get(wildcards.dataset)
    return FILES.list_tables(whole) if whole else []


def source_files(wildcards):
    """A source's files; only the names of folders, because viewing a folder may change its time.

    `source_state` covers files whose names Snakemake would read as patterns.
    """
    if wildcards.dataset in WHOLE:
        return []
    files = DATASETS[wildcards.dataset].input_files()
    return [
        ancient(file) if Path(file).is_dir() else file
        for file in files
        if not is_wildcard(file)
    ]
