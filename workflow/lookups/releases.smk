"""Input functions and constants of releases.smk."""


def released_features(release):
    """The dataset and the backbone of a release."""
    options = STUDY.releases[release]
    return options.dataset, options.backbone


def released_audit(wildcards):
    """The audit of the cell with a release's method and epsilon, if the study audits this cell."""
    options = STUDY.releases[wildcards.release]
    cell = (
        options.dataset,
        options.backbone,
        options.method,
        options.token,
    )
    record = str(audit_path(f"<results>/{AUDITS}", cell, RECORD_SUFFIX))
    return record if cell in AUDITED_CELLS else []


def exact_method(wildcards):
    """The method of a release if a GPU may compute its exact sums; other heads are released from the CPU."""
    name = STUDY.releases[wildcards.release].method
    method = STUDY.methods[name]
    engine = getattr(getattr(method, "base", method), "engine", None)
    return [name] if engine == "exact" or is_undecided(method) else []


def benchmark_cells(release):
    """The cell with a release's method and epsilon, if the study has this cell."""
    options = STUDY.releases[release]
    cell = Cell(*released_features(release), options.method, options.token)
    return [cell] if cell in FILES.list_study_cells(cell.dataset) else []


def released_files(wildcards):
    """Public files with initial weights of a release's method."""
    options = STUDY.releases[wildcards.release]
    return located_method(
        options.method, options.dataset, options.backbone
    ).input_files()


def released_predecessor(wildcards):
    """The file of hashes of the bundle that a release replaces; a bundle of this study is made first."""
    before = STUDY.releases[wildcards.release].predecessor
    if before is None:
        return []
    if before in STUDY.releases:
        return f"<results>/releases/{before}/{SUMS_FILE}"
    return str(resolve_path(before) / SUMS_FILE)


def tracked_predecessor(wildcards):
    """The MLflow receipt of the replaced release of this study, which is written first."""
    before = STUDY.releases[wildcards.release].predecessor
    return (
        f"<results>/tracking/releases/{before}.json" if before in STUDY.releases else []
    )


def release_paths(release):
    """All outputs of a release: bundle, mark of the job, and version in MLflow's registry."""
    return [
        *(f"<results>/releases/{release}/{name}" for name in BUNDLE_FILES),
        f"<results>/releases/.{release}.done",
        f"<results>/tracking/releases/{release}.json",
    ]
