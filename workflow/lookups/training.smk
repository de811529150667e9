"""Input functions and constants of training.smk."""

# of each training job: are its cells whole, and do their records agree with the study
CHECKED = {}
# The first cell of each kind that is made again: the kind is told of once.
TOLD = {}


def overlap_counts(wildcards):
    """The counts of a near-duplicate check, where the study asks for one."""
    counts = f"<results>/overlap/{wildcards.dataset}/{wildcards.backbone}.json"
    return counts if STUDY.overlap else []


def heads_params(epsilon):
    """The options of the methods whose linear heads train at an epsilon."""
    return {
        name: asked_options(STUDY.methods[name])
        for name in head_methods(STUDY, epsilon)
    }


def located_method(name, dataset, backbone):
    """The options of a method, with the places of its files for one dataset and backbone."""
    return STUDY.methods[name].fill_paths(dataset=dataset, backbone=backbone)


def method_files(wildcards):
    """Public files that the methods of a job start from."""
    place = (wildcards.dataset, wildcards.backbone)
    return sorted(
        {
            path
            for name in head_methods(STUDY, wildcards.epsilon)
            for path in located_method(name, *place).input_files()
        }
    )


def private_methods():
    """The names of the study's private methods of linear heads."""
    return [
        name
        for name, method in STUDY.methods.items()
        if method.private and not method.tunes_network
    ]


def check_cells(mark, job):
    """Has a job run again if files of its cells are lost or damaged, or if a cell's record disagrees with the study.

    Snakemake compares the parameters that it noted down; a record says what the cell was made from, whoever made it.

    Args:
      mark: the mark of the job.
      job: its (dataset, backbone, epsilon), and of networks the method.
    """
    if not workflow.is_main_process:
        return
    if job not in CHECKED:
        dataset, backbone, epsilon, *methods = job
        done = os.path.exists(mark)  # without its mark a job runs
        CHECKED[job] = all(
            cell_stays(Cell(dataset, backbone, method, epsilon), done)
            for method in methods or head_methods(STUDY, epsilon)
        )
    if not CHECKED[job]:
        make_again(mark)


def disagreeing_cells(wildcards):
    """Names no file, and checks the cells of a training job."""
    job = (wildcards.dataset, wildcards.backbone, wildcards.epsilon)
    check_cells("{}/cells/{}/{}/.eps-{}.done".format(STUDY.results_dir, *job), job)
    return []


def tell_first(problem, first):
    """Tells of the first of the cells that are made again because of a problem."""
    if TOLD.setdefault(problem, first) == first:
        print(f"dpprobe: {problem} are made again, {first}", file=sys.stderr)


def cell_stays(cell, done):
    """Returns True if a cell of a job is whole, as far as the job is done, and agrees with the study.

    It looks at names and sizes of files and at the record's hash of itself; `dpprobe doctor` reads all bytes.
    """
    cell = CellName(**cell._asdict())
    folder = cell.folder(f"{STUDY.results_dir}/cells")
    path = folder / METRICS_FILE
    if done:
        try:
            files = set(os.listdir(folder))
        except OSError:
            return False  # a cell that was never made, as of a new method, is nothing to tell of
        if lost := [name for name in CELL_FILES if name not in files]:
            tell_first("files of cells are missing and", f"{folder}/{lost[0]} first")
            return False
    try:
        record = read_whole_record(path)
        if record["cell"] != cell.model_dump():
            raise ValueError("the record of another cell")
    except ValueError as error:
        if done:
            tell_first("damaged cells", f"{path} first: {error}")
        return not done
    except (OSError, KeyError, TypeError, AttributeError):
        return True  # the job that reads the file says what is wrong with it
    difference = record_difference(record, cell) if parameters_count() else None
    if difference is not None:
        tell_first(
            "cells whose records disagree with the study",
            f"{path} first: {difference.place}: {difference.first}, and the study has {difference.second}",
        )
    return difference is None


def record_difference(record, cell):
    """Returns where a cell's record differs from the study; None where they agree."""
    options = located_method(cell.method, cell.dataset, cell.backbone)
    promised, delta = cell.epsilon != INFINITE, STUDY.dataset_delta(cell.dataset)
    try:
        if is_undecided(options):
            epsilon = nominal_epsilon(cell.epsilon, delta)
            options = options.resolve_choice(
                recorded_facts(record, epsilon=epsilon, delta=delta)
            )
        return find_disagreement(
            record,
            options=dumped(options),
            seeds=STUDY.seeds,
            study_seed=STUDY.seed,
            delta=delta if promised else None,
            accountant=STUDY.accountant if promised else None,
            unit=STUDY.dataset_unit(cell.dataset),
        )
    except (ValueError, AttributeError, KeyError, TypeError):
        return None  # the job that reads the file says what is wrong with it
