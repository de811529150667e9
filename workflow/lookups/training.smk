"""Input functions and constants of training.smk."""

# of each training job: are its cells whole, and do their records agree with the study
CHECKED = {}
# What is told of once: the first file of a cell that is missing though its job is done, and the first such record.
LOST, DISAGREEING = [], []


def overlap_counts(wildcards):
    """The counts of a near-duplicate check, where the study asks for one."""
    counts = f"<results>/overlap/{wildcards.dataset}/{wildcards.backbone}.json"
    return counts if STUDY.overlap else []


def heads_params(epsilon):
    """The options of the methods whose linear heads train at an epsilon."""
    return {
        name: STUDY.methods[name].asked_options()
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
    """Has a job run again that lost a file of its cells, or whose cells' records disagree with the study.

    Snakemake compares the parameters that it noted down; a record says what the cell was made from, whoever made it.

    Args:
      mark: the mark of the job.
      job: its (dataset, backbone, epsilon), and of networks the method.
    """
    if not workflow.is_main_process:
        return
    if job not in CHECKED:
        CHECKED[job] = cells_whole(mark, job) and (
            not parameters_count() or records_agree(*job)
        )
    if not CHECKED[job]:
        make_again(mark)


def disagreeing_cells(wildcards):
    """Names no file, and checks the cells of a training job."""
    job = (wildcards.dataset, wildcards.backbone, wildcards.epsilon)
    check_cells("{}/cells/{}/{}/.eps-{}.done".format(STUDY.results_dir, *job), job)
    return []


def cells_whole(mark, job):
    """Returns True if no file of a job's cells is missing, as far as the job is done; tells of the first that is."""
    if not os.path.exists(mark):
        return True  # without its mark a job runs
    dataset, backbone, epsilon, *methods = job
    for method in methods or head_methods(STUDY, epsilon):
        folder = (
            f"{STUDY.results_dir}/cells/{dataset}/{backbone}/{method}/eps-{epsilon}"
        )
        try:
            files = set(os.listdir(folder))
        except OSError:
            return False  # a cell that was never made, as of a new method, is nothing to tell of
        lost = [name for name in CELL_FILES if name not in files]
        if lost:
            if not LOST:
                LOST.append(f"{folder}/{lost[0]}")
                print(
                    f"dpprobe: files of cells are missing and are made again, {LOST[0]} first",
                    file=sys.stderr,
                )
            return False
    return True


def records_agree(dataset, backbone, epsilon, *methods):
    """Returns True if the records of a training job's cells agree with the study; tells of the first that does not."""
    for method in methods or head_methods(STUDY, epsilon):
        cell = CellName(
            dataset=dataset, backbone=backbone, method=method, epsilon=epsilon
        )
        path = cell.folder(f"{STUDY.results_dir}/cells") / METRICS_FILE
        difference = record_difference(path, cell)
        if difference is None:
            continue
        if not DISAGREEING:
            DISAGREEING.append(path)
            print(
                f"dpprobe: cells whose records disagree with the study are made again, {path} first: "
                f"{difference.place}: {difference.first}, and the study has {difference.second}",
                file=sys.stderr,
            )
        return False
    return True


def record_difference(path, cell):
    """Returns where a cell's record, if it can be read, differs from the study; None where they agree."""
    options = located_method(cell.method, cell.dataset, cell.backbone)
    promised, delta = cell.epsilon != INFINITE, STUDY.dataset_delta(cell.dataset)
    try:
        record = json.loads(path.read_bytes())
        if options.is_undecided:
            epsilon = cell.epsilon_value
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
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None  # the job that reads the file says what is wrong with it
