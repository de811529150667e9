include: "../lookups/fine_tuning.smk"


# One job trains a network of one seed, so that several GPUs train in parallel; another job makes the cell of all seeds.
# As in training, files are marked with update() and up-to-date files are reused; a failed job leaves no mark.
rule tune_network:
    """A fine-tuned network of one seed."""
    input:
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=tuned_features,
        rows=tuned_rows,
        cuts=cut_paths,
        tables=tuned_tables,
        weights=backbone_files,
        plans="<results>/calibration/{dataset}/eps-{epsilon}.json",
        choice=searched_values,
        public=network_files,
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
        "../../envs/training.yaml"
    threads: tuning_threads
    resources:
        mem_mb=tuning_memory,
        runtime=tuning_minutes,
        gpu=tuning_gpus,
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
        files=outside_state(backbone_files, network_files),
    message:
        "network {wildcards.index} of {wildcards.dataset}, {wildcards.backbone}, {wildcards.method}, "
        "epsilon {wildcards.epsilon}"
    script:
        "../../scripts/tune_network.py"


rule gather_networks:
    """A cell of the fine-tuned networks of all seeds."""
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
        "../../envs/training.yaml"
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
        files=outside_state(network_files),
    message:
        "networks of {wildcards.dataset}, {wildcards.backbone}, {wildcards.method}, "
        "epsilon {wildcards.epsilon}"
    script:
        "../../scripts/gather_networks.py"
