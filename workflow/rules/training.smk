from dpprobe.privacy.limits import INFINITE
from dpprobe.study.network_methods import head_methods
from dpprobe.stage_versions import VERSIONS


# One job trains every method of a (dataset, backbone, epsilon). Snakemake deletes the cells before the job starts and
# after it failed, so the job reuses cells in the store <results>/.cells by links (`dpprobe.files.result_store`).
rule train_heads:
    """Private heads of one dataset, backbone and epsilon."""
    input:
        train="<results>/features/{dataset}/{backbone}/train/manifest.json",
        test="<results>/features/{dataset}/{backbone}/test/manifest.json",
        shards=feature_shards,
        plans="<results>/calibration/{dataset}/eps-{epsilon}.json",
        public=method_files,
        overlap=overlap_counts,
    output:
        cell_outputs(private_methods()),
    log:
        "<logs>/train_heads/{dataset}/{backbone}/eps-{epsilon}.log",
    benchmark:
        "<benchmarks>/train_heads/{dataset}/{backbone}/eps-{epsilon}.tsv"
    wildcard_constraints:
        epsilon=names(
            epsilon for epsilon in STUDY.job_epsilons() if epsilon != INFINITE
        ),
    # Training, most of all of non-private baselines, is on the longest path to the results.
    priority: 1
    conda:
        "../../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=training_memory,
        runtime=training_minutes,
        gpu=fit_gpus(lambda wildcards: head_methods(STUDY, wildcards.epsilon)),
    params:
        methods=heads_params,
        seeds=STUDY.seeds,
        seed=STUDY.seed,
        privacy=privacy_params,
        memory_mb=STUDY.features.memory_mb,
        metric=lambda wildcards: STUDY.datasets[wildcards.dataset].metric,
        version=VERSIONS["training"],
        statement=VERSIONS["statement"],
        files=outside_state(method_files),
    message:
        "heads of {wildcards.dataset}, {wildcards.backbone}, epsilon {wildcards.epsilon}"
    script:
        "../../scripts/train_heads.py"


# Without a privacy budget, all non-private methods are trained; private methods only if the study lists epsilon inf.
use rule train_heads as train_heads_without_privacy with:
    """Heads without a privacy budget: non-private baselines, and private methods at epsilon inf."""
    output:
        cell_outputs(head_methods(STUDY, INFINITE)),
    wildcard_constraints:
        epsilon=INFINITE,
    priority: 2
