def tuned_options(wildcards):
    """The options of the network of a job."""
    return network_options(STUDY.methods[wildcards.method])


def cut_paths(wildcards, names=None):
    """The manifests of the activations that a network starts from, or files beside them; none where it has no cut."""
    blocks = tuned_options(wildcards).cut_blocks
    if blocks is None:
        return []
    return [
        f"<results>/cuts/{wildcards.dataset}/{wildcards.backbone}/blocks-{blocks}/{split}/{name}"
        for split in ("train", "test")
        for name in names or ["manifest.json"]
    ]


def tuned_rows(wildcards):
    """The files of the rows that a network trains on: images, activations or features."""
    options = tuned_options(wildcards)
    if options.from_images:
        return [
            f"<data>/{wildcards.dataset}/{split}.parquet" for split in ("train", "test")
        ]
    if options.cut_blocks:
        return cut_paths(wildcards, FILES.list_shard_names())
    return tuned_features(wildcards)


def tuned_features(wildcards):
    """The feature shards of both splits."""
    return [
        path
        for split in ("train", "test")
        for path in FILES.list_shards(wildcards.dataset, wildcards.backbone, split)
    ]


def tuned_tables(wildcards):
    """The two split tables, where a network trains on images."""
    return tuned_rows(wildcards) if tuned_options(wildcards).from_images else []


def searched_values(wildcards):
    """The result of the search over a method's options, where it has one."""
    if tuned_options(wildcards).search is None:
        return []
    cell = wildcards_cell(wildcards)
    return f"<results>/searches/{cell.dataset}/{cell.backbone}/{cell.method}/eps-{cell.epsilon}.json"


def network_files(wildcards):
    """Public files that a network starts from."""
    return (
        STUDY.methods[wildcards.method]
        .fill_paths(dataset=wildcards.dataset, backbone=wildcards.backbone)
        .input_files()
    )


def disagreeing_seed(wildcards):
    """Names no file, and has a network made again whose record has other options than the study."""
    cell = wildcards_cell(wildcards)
    folder = network_folder(
        f"{STUDY.results_dir}/{NETWORKS_FOLDER}", cell, wildcards.index
    )
    options = STUDY.methods[cell.method].fill_paths(
        dataset=cell.dataset, backbone=cell.backbone
    )
    with suppress(OSError, ValueError, KeyError, TypeError):
        written = json.loads((folder / NETWORK_FILES[0]).read_bytes())["options"]
        counts = workflow.is_main_process and parameters_count()
        if counts and written != dumped(options):
            make_again(str(folder.with_name(f".{folder.name}.done")))
    return []


def disagreeing_networks(wildcards):
    """Names no file, and checks a cell of networks."""
    dataset, backbone, method, epsilon = wildcards_cell(wildcards)
    mark = (
        f"{STUDY.results_dir}/cells/{dataset}/{backbone}/{method}/.eps-{epsilon}.done"
    )
    check_cells(mark, (dataset, backbone, epsilon, method))
    return []


# Networks: one job for each seed, so that they run side by side where there are GPUs, and a cell made of them. As in
# training, files are marked with update() and what is current is kept; the marks are missing where a job failed.
rule tune_network:
    input:
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=tuned_features,
        rows=tuned_rows,
        cuts=cut_paths,
        tables=tuned_tables,
        weights=lambda wildcards: STUDY.backbones[wildcards.backbone].input_files(),
        plans="<results>/calibration/{dataset}/eps-{epsilon}.json",
        choice=searched_values,
        public=network_files,
        again=disagreeing_seed,
    output:
        files=update(
            expand(
                "<results>/networks/{dataset}/{backbone}/{method}/eps-{epsilon}/seed-{index}/{file}",
                file=NETWORK_FILES,
                allow_missing=True,
            )
        ),
        done=touch(
            "<results>/networks/{dataset}/{backbone}/{method}/eps-{epsilon}/.seed-{index}.done"
        ),
    log:
        "<logs>/tune_network/{dataset}/{backbone}/{method}/eps-{epsilon}/seed-{index}.log",
    benchmark:
        "<benchmarks>/tune_network/{dataset}/{backbone}/{method}/eps-{epsilon}/seed-{index}.tsv"
    wildcard_constraints:
        method=names(network_methods(STUDY)),
        index=r"\d+",
    conda:
        "../../envs/dpprobe.yaml"
    threads: network_threads
    resources:
        mem_mb=tuning_memory,
        runtime=tuning_minutes,
    params:
        methods=lambda wildcards: {
            wildcards.method: dumped(STUDY.methods[wildcards.method])
        },
        backbone=lambda wildcards: STUDY.backbones[
            wildcards.backbone
        ].extraction_params(),
        seed=STUDY.seed,
        privacy=privacy_params,
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        trained=VERSIONS["training"],
        version=VERSIONS["fine_tuning"],
    message:
        "network {wildcards.index} of {wildcards.dataset}, {wildcards.backbone}, {wildcards.method}, "
        "epsilon {wildcards.epsilon}"
    script:
        "../../scripts/tune_network.py"


rule gather_networks:
    input:
        networks=lambda wildcards: FILES.list_networks([wildcards_cell(wildcards)]),
        marks=lambda wildcards: FILES.list_network_marks([wildcards_cell(wildcards)]),
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=tuned_features,
        cuts=cut_paths,
        plans="<results>/calibration/{dataset}/eps-{epsilon}.json",
        choice=searched_values,
        public=network_files,
        overlap=overlap_counts,
        again=disagreeing_networks,
    output:
        cells=update(
            expand(
                "<results>/cells/{dataset}/{backbone}/{method}/eps-{epsilon}/{file}",
                file=NAMED_FILES,
                allow_missing=True,
            )
        ),
        done=touch("<results>/cells/{dataset}/{backbone}/{method}/.eps-{epsilon}.done"),
    log:
        "<logs>/gather_networks/{dataset}/{backbone}/{method}/eps-{epsilon}.log",
    benchmark:
        "<benchmarks>/gather_networks/{dataset}/{backbone}/{method}/eps-{epsilon}.tsv"
    wildcard_constraints:
        method=names(network_methods(STUDY)),
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, factor=0.1),
        runtime=minutes(20),
    params:
        methods=lambda wildcards: {
            wildcards.method: dumped(STUDY.methods[wildcards.method])
        },
        seeds=STUDY.seeds,
        seed=STUDY.seed,
        privacy=privacy_params,
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        version=VERSIONS["fine_tuning"],
        statement=VERSIONS["statement"],
    message:
        "networks of {wildcards.dataset}, {wildcards.backbone}, {wildcards.method}, "
        "epsilon {wildcards.epsilon}"
    script:
        "../../scripts/gather_networks.py"
