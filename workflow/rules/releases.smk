from dpprobe.results.cell_files import METRICS_FILE
from dpprobe.stage_versions import VERSIONS


# One job makes a release, which is final and costs its epsilon permanently. Snakemake deletes outputs, so the bundle is
# not an output, and a job never changes an existing release. The ledger in data_dir decides which releases are made. The
# job's output only marks the job as done; the job reruns if a file of the bundle is missing (`release_stays`).
rule make_release:
    """A head to publish; costs its epsilon for good."""
    input:
        train=lambda wildcards: FILES.locate_manifest(
            *released_features(wildcards.release), "train"
        ),
        test=lambda wildcards: FILES.locate_manifest(
            *released_features(wildcards.release), "test"
        ),
        shards=lambda wildcards: FILES.list_shards(
            *released_features(wildcards.release)
        ),
        public=released_files,
        audit=released_audit,
        benchmark=lambda wildcards: FILES.list_cells(
            benchmark_cells(wildcards.release), [METRICS_FILE]
        ),
        # `ancient`: a final release's bundle does not change if this input changes.
        predecessor=ancient(released_predecessor),
    output:
        touch("<results>/releases/.{release}.done"),
    log:
        "<logs>/make_release/{release}.log",
    conda:
        "../../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=training_memory,
        runtime=minutes(240),
        gpu=fit_gpus(exact_method),
    params:
        options=lambda wildcards: STUDY.releases[wildcards.release].model_dump(
            mode="json", exclude={"allow_useless"}
        ),
        method=lambda wildcards: dumped(
            STUDY.methods[STUDY.releases[wildcards.release].method]
        ),
        privacy=lambda wildcards: privacy_params(STUDY.releases[wildcards.release]),
        limit=lambda wildcards: STUDY.max_epsilon(
            STUDY.releases[wildcards.release].dataset
        ),
        calibration=f"{STUDY.results_dir}/calibration",
        version=VERSIONS["release"],
    message:
        "release {wildcards.release}"
    script:
        "../../scripts/make_release.py"


# Releases are not part of `all`, because they are made only on request.
rule releases:
    """Every release of the study; not a part of `all`."""
    input:
        lambda wildcards: [
            path for release in STUDY.releases for path in release_paths(release)
        ],
