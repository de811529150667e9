def methods_params(epsilon):
    """The options of the methods that train at an epsilon."""
    return {name: dumped(STUDY.methods[name]) for name in STUDY.job_methods(epsilon)}


def calibration_params(wildcards):
    """The same, and the permission of a delta above 1/n only where there is one: other studies keep their plans."""
    allowed = STUDY.allows_delta_above(wildcards.dataset)
    return privacy_params(wildcards) | (
        {"allow_delta_above_one_over_n": True} if allowed else {}
    )


rule calibrate:
    input:
        info="<data>/{dataset}/dataset.json",
    output:
        "<results>/calibration/{dataset}/eps-{epsilon}.json",
    log:
        "<logs>/calibrate/{dataset}/eps-{epsilon}.log",
    benchmark:
        "<benchmarks>/calibrate/{dataset}/eps-{epsilon}.tsv"
    conda:
        "../../envs/dpprobe.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=minutes(30),
    params:
        methods=lambda wildcards: methods_params(wildcards.epsilon),
        privacy=calibration_params,
        seeds=STUDY.seeds,
        version=VERSIONS["calibration"],
    message:
        "noise multipliers for {wildcards.dataset} at epsilon {wildcards.epsilon}"
    script:
        "../../scripts/calibrate.py"
