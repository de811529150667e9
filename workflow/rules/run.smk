"""The snapshot of a run, and the words that a person typed to start it."""


def option_text(value):
    """A value as `--config name=value` takes it."""
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return "" if value is None else str(value)


def snakemake_call():
    """The words a person types after `snakemake` to run this study, from the working directory."""
    snakefile = Path(os.path.relpath(workflow.main_snakefile))
    here = snakefile == Path("Snakefile")
    files = [os.path.relpath(file) for file in workflow.overwrite_configfiles or []]
    given = public_addresses(dict(workflow.config_settings.config))
    values = [f"{key}={option_text(value)}" for key, value in given.items()]
    return [
        *([] if here else ["--snakefile", snakefile.as_posix()]),
        *(["--configfile", *files] if files else []),
        *(["--config", *values] if values else []),
    ]


# The words that made this run: a job's configuration file is the snapshot, and no person's.
CALL = RUN["call"] if RUN else snakemake_call()

# Other runs may work on them from other working directories, which Snakemake's lock does not see.
RUN_FOLDERS = [
    Path(folder).absolute() for folder in (STUDY.results_dir, STUDY.data_dir)
]


def tell_scripts(snapshot, versions):
    """Tells the scripts of jobs, by variables of the environment, what the run began with."""
    folders = list(map(str, dict.fromkeys(RUN_FOLDERS)))
    os.environ[MARKED] = json.dumps(folders)
    os.environ[SNAPSHOT_FILE] = str(snapshot)
    os.environ[RUN_VERSIONS] = json.dumps(versions)


if workflow.is_main_process:
    SNAPSHOT = take_snapshot(config, STUDY, call=CALL)
    start_jobs_with(SNAPSHOT)
elif RUN:
    tell_scripts(workflow.overwrite_configfiles[0], RUN["versions"])
    with suppress(OSError):
        os.utime(os.environ[SNAPSHOT_FILE])  # it is in use


def begin_run():
    """Writes the run's snapshot and marks."""
    tell_scripts(SNAPSHOT.path, VERSIONS)
    # first, so that one of two runs of the same moment sees the other
    mark_run(RUN_FOLDERS)
    for other in find_other_runs(RUN_FOLDERS):
        print(
            f"dpprobe: warning: {other.describe()}: jobs of both fail where they replace a file that the other reads; "
            "wait for that run, or give each study folders of its own",
            file=sys.stderr,
        )
    SNAPSHOT.write()
    SNAPSHOT.remove_older()
