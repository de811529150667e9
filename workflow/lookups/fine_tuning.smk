"""Input functions and constants of fine_tuning.smk."""


def tuned_options(wildcards):
    return network_options(STUDY.methods[wildcards.method])


def cut_paths(wildcards, names=None):
    """The manifests of a network's input activations, or other files of their folder; empty without a cut."""
    blocks = tuned_options(wildcards).cut_blocks
    if blocks is None:
        return []
    return [
        f"<results>/cuts/{wildcards.dataset}/{wildcards.backbone}/blocks-{blocks}/{split}/{name}"
        for split in ("train", "test")
        for name in names or ["manifest.json"]
    ]


def tuned_rows(wildcards):
    """The files with a network's training rows: images, activations or features."""
    options = tuned_options(wildcards)
    if options.from_images:
        return [
            f"<data>/{wildcards.dataset}/{split}.parquet" for split in ("train", "test")
        ]
    if options.cut_blocks:
        return cut_paths(wildcards, FILES.list_shard_names())
    return tuned_features(wildcards)


def tuned_features(wildcards):
    return [
        path
        for split in ("train", "test")
        for path in FILES.list_shards(wildcards.dataset, wildcards.backbone, split)
    ]


def tuned_tables(wildcards):
    """The two split tables, if a network trains on images."""
    return tuned_rows(wildcards) if tuned_options(wildcards).from_images else []


def searched_values(wildcards):
    """The result of the search over a method's options, if the method has a search."""
    if tuned_options(wildcards).search is None:
        return []
    cell = wildcards_cell(wildcards)
    return f"<results>/searches/{cell.dataset}/{cell.backbone}/{cell.method}/eps-{cell.epsilon}.json"


def network_files(wildcards):
    """Public files with a network's initial weights."""
    return located_method(
        wildcards.method, wildcards.dataset, wildcards.backbone
    ).input_files()
