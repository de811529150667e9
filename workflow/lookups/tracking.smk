"""Input functions and constants of tracking.smk."""


def lost_receipts():
    """The receipts of runs that are gone with their MLflow store."""
    names = [
        *STUDY.datasets,
        *(f"releases/{name}" for name in STUDY.releases),
        "_study",
    ]
    files = [f"{STUDY.results_dir}/tracking/{name}.json" for name in names]
    return [file for file in files if store_missing(Path(file))]


LOST_RECEIPTS = lost_receipts() if workflow.is_main_process else []
for file in LOST_RECEIPTS:
    print(
        f"dpprobe: {file}: its MLflow store is gone; tracking writes the runs again",
        file=sys.stderr,
    )


def runs_again(name):
    """Makes an input function that names no file, and has runs written again whose store is gone."""

    def no_file(wildcards):
        file = f"{STUDY.results_dir}/tracking/{name.format(**wildcards)}.json"
        if file in LOST_RECEIPTS:
            make_again(file)
        return []

    return no_file


# Runs of two datasets may share a store. If Snakemake ends between the two, the next start finds a store. Only a
# missing receipt then says that the runs of the other dataset are to be written.
def begin_run():
    """Writes the run's snapshot and marks, and removes receipts of MLflow runs whose store is gone."""
    tell_scripts(SNAPSHOT.path, VERSIONS)
    for other in find_other_runs(RUN_FOLDERS):
        print(
            f"dpprobe: warning: {other.describe()}: jobs of both fail where they replace a file that the other reads; "
            "wait for that run, or give each study folders of its own",
            file=sys.stderr,
        )
    mark_run(RUN_FOLDERS)
    SNAPSHOT.write()
    SNAPSHOT.remove_older()
    for file in LOST_RECEIPTS:
        Path(file).unlink(missing_ok=True)
