from dpprobe.study.network_methods import searched_methods
from dpprobe.stage_versions import VERSIONS


# Unpriced searches over the options of methods that train networks: one job for each (dataset, backbone, method,
# epsilon). A failed job resumes from the finished trials, which are in a hidden log in the record's folder.
rule search_options:
    """A search over the options of a method that trains networks."""
    input:
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=feature_shards,
        rows=tuned_rows,
        cuts=cut_paths,
        tables=tuned_tables,
        weights=backbone_files,
        plans="<results>/calibration/{dataset}/eps-{epsilon}.json",
        public=network_files,
    output:
        "<results>/searches/{dataset}/{backbone}/{method}/eps-{epsilon}.json",
    log:
        "<logs>/search_options/{dataset}/{backbone}/{method}/eps-{epsilon}.log",
    benchmark:
        "<benchmarks>/search_options/{dataset}/{backbone}/{method}/eps-{epsilon}.tsv"
    wildcard_constraints:
        method=names(searched_methods(STUDY)),
    conda:
        "../../envs/training.yaml"
    threads: network_threads
    resources:
        mem_mb=searching_memory,
        runtime=searching_minutes,
        gpu=network_gpus,
    params:
        methods=method_params,
        backbone=backbone_params,
        seed=STUDY.seed,
        privacy=privacy_params,
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        trained=VERSIONS["fine_tuning"],
        version=VERSIONS["search"],
        files=outside_state(backbone_files, network_files),
    message:
        "search of {wildcards.dataset}, {wildcards.backbone}, {wildcards.method}, epsilon {wildcards.epsilon}"
    script:
        "../../scripts/search_options.py"


rule searches:
    """Every search over options of networks."""
    input:
        of_cells(FILES.list_searches),
