from dpprobe.stage_versions import VERSIONS


rule calibrate:
    """Noise multipliers of all methods at one epsilon."""
    input:
        info="<data>/{dataset}/dataset.json",
    output:
        "<results>/calibration/{dataset}/eps-{epsilon}.json",
    log:
        "<logs>/calibrate/{dataset}/eps-{epsilon}.log",
    benchmark:
        "<benchmarks>/calibrate/{dataset}/eps-{epsilon}.tsv"
    conda:
        "../../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=minutes(30),
    params:
        methods=methods_params,
        privacy=calibration_params,
        seeds=STUDY.seeds,
        version=VERSIONS["calibration"],
    message:
        "noise multipliers for {wildcards.dataset} at epsilon {wildcards.epsilon}"
    script:
        "../../scripts/calibrate.py"
