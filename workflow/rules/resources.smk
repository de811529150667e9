"""The memory (MB), time (minutes), threads and GPUs that jobs request; profiles/slurm/config.yaml overrides them."""

import shutil
from functools import cache
from pathlib import Path

from dpprobe.files.json_files import read_json
from dpprobe.devices import count_devices, lacks_gpu
from dpprobe.errors import ConfigError, DpprobeError
from dpprobe.heads.fit_device import FitPlace, place_fit
from dpprobe.study.network_methods import head_methods
from dpprobe.study.slurm_partitions import ask_partitions
from dpprobe.training.training_cost import estimate_memory_mb

# Images per second of a network on four CPUs (False) and on a GPU (True), in forward passes and in training steps.
# ViT-L/16 at 384 px reached 155 in forward passes and 29 in training steps on an RTX 3090 (timm's
# results/benchmark-*-rtx3090.csv). Private steps on a TPUv4 core reached 25 (table 8 of Mehta et al. 2022). A job gets
# time for a quarter of the published rates, because decoding may take as long as the network.
FORWARD_RATE = {False: 4, True: 40}
IMAGE_STEP_RATE = {False: 2, True: 7}
CUT_STEP_RATE = {False: 8, True: 28}
# ImageNet's number of rows, for datasets whose size is unknown before the download.
UNKNOWN_ROWS = (1_281_167, 50_000)
# MB per row while tables are written, for positions in tars, names and hashes (bench/results/scale.json).
PREPARED_ROW_MB = 0.001


def size_mb(paths):
    """The size of existing input files; files that do not exist yet count as 0."""
    return sum(map(file_size, paths)) / 1e6


def file_size(path):
    """The size of a file in bytes; 0 before it exists."""
    path = Path(path)
    return path.stat().st_size if path.exists() else 0


def memory(base, factor=0.0):
    """Makes a mem_mb function: base MB and `factor` times the input's size, more on each attempt."""

    def mem_mb(wildcards, input, attempt):
        # the sizes of thousands of inputs are read only if they are needed
        inputs = factor * size_mb(input) if factor else 0
        return int((base + inputs) * attempt)

    return mem_mb


def minutes(base, per_gb=0.0):
    """Makes a runtime function: base minutes and `per_gb` for each GB of input, more on each attempt."""

    def runtime(wildcards, input, attempt):
        inputs = per_gb * size_mb(input) / 1e3 if per_gb else 0
        return int((base + inputs) * attempt)

    return runtime


def network_threads(wildcards):
    """Four threads for networks; other backbones finish before a second thread has started."""
    return 4 if STUDY.backbones[wildcards.backbone].network else 1


def tuning_threads(wildcards):
    """Threads to train a network: each process has as many as other jobs that run a network."""
    return STUDY.fine_tuning.processes * network_threads(wildcards)


def training_memory(wildcards, input, attempt):
    """Memory of training in MB."""
    return int(estimate_memory_mb(STUDY, size_mb(input)) * attempt)


@cache
def expected_rows(dataset):
    """The number of rows of a dataset's two tables before they exist."""
    return DATASETS[dataset].count_rows() or UNKNOWN_ROWS


def table_rows(wildcards):
    """The number of rows of a dataset's two tables."""
    info = Path(STUDY.data_dir, wildcards.dataset, "dataset.json")
    try:
        splits = read_json(info)["splits"]
        return splits["train"]["rows"], splits["test"]["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        # The file does not exist yet, or is damaged; the job that reads it reports damage.
        return expected_rows(WHOLE.get(wildcards.dataset, wildcards.dataset))


def preparation_memory(wildcards, attempt):
    """Memory in MB to write split tables: names and hashes of all rows are in memory, to find copies."""
    return int(3000 + PREPARED_ROW_MB * sum(table_rows(wildcards))) * attempt


def preparation_minutes(wildcards, attempt):
    """Minutes to decode every image, at 40 large photographs per second, or to copy 1,000 vectors per second."""
    name = wildcards.dataset
    rate = 1000 if DATASETS[WHOLE.get(name, name)].holds_vectors else 40
    return int((20 + sum(table_rows(wildcards)) / rate / 60) * attempt)


def extraction_memory(wildcards, input, attempt, threads):
    """Memory of extraction in MB: twice the weights while they load (ViT-L: 4 GB), 200 MB per decoding process.

    The sizes of weights' files count; a backbone given only by name has no file.
    """
    return int((4000 + 3 * size_mb(input.weights) + 200 * threads) * attempt)


def extraction_minutes(wildcards, input, attempt, rulename):
    """Minutes to extract a shard, at the rate of a large network."""
    rows = dict(zip(("train", "test"), table_rows(wildcards)))[wildcards.split]
    if wildcards.split == "train":
        rows *= 1 + STUDY.backbones[wildcards.backbone].stored_crops
    rate = 1000 if STUDY.backbones[wildcards.backbone].takes_vectors else 200
    if STUDY.backbones[wildcards.backbone].network:
        rate = FORWARD_RATE[has_gpu(wildcards, input, attempt, rulename)]
    return int((20 + rows / STUDY.features.shards / rate / 60) * attempt)


def audit_minutes(wildcards, input, attempt):
    """Minutes of an audit: three seconds per fit with a canary, five minutes per replay at full width, and shadow heads."""
    methods, options = len(audited_methods(wildcards.epsilon)), STUDY.audit
    fits = options.runs * (8 if options.controls else 1)
    # about ten controls are detected only by a replay
    replays = 11 if options.controls else 1
    shadows = options.membership.shadows if options.membership else 0
    minutes = fits * 3 / 60 + 5 * replays + 6 * shadows * size_mb(input) / 1e3
    return int((30 + methods * minutes) * attempt)


def imbalance_memory(wildcards, input, attempt):
    """Memory in MB to compare rare classes: one cell's unpacked predictions."""
    cells = len(input.cells) / 2
    return int((2000 + 8 * size_mb(input.cells) / cells) * attempt)


def imbalance_minutes(wildcards, input, attempt):
    """Minutes to compare rare classes: a second per cell, and the time to read all predictions."""
    cells = len(input.cells) / 2
    return int((20 + cells / 60 + 5 * size_mb(input.cells) / 1e3) * attempt)


def training_minutes(wildcards, input, attempt):
    """Minutes of training: 6 per GB, method and seed, three times the measured time."""
    heads = len(head_methods(STUDY, wildcards.epsilon)) * STUDY.seeds
    return int((30 + 6 * heads * size_mb(input) / 1e3) * attempt)


def tuning_memory(wildcards, input, attempt):
    """Memory in MB to train a network: each process has its own rows and network."""
    return STUDY.fine_tuning.processes * searching_memory(wildcards, input, attempt)


def searching_memory(wildcards, input, attempt):
    """Memory in MB to train networks in one process: rows, at most features.memory_mb of each split, and passes.

    Activations may be float16 on disk; images in memory are bytes, larger than their files.
    """
    rows = min(2.2 * size_mb(input.rows), 2 * STUDY.features.memory_mb)
    views = getattr(tuned_options(wildcards).augment, "views", 1)
    passes = 60 * STUDY.fine_tuning.physical_batch * views
    return int((4000 + 3 * size_mb(input.weights) + rows + passes) * attempt)


def tuning_minutes(wildcards, input, attempt, rulename):
    """Minutes to train a network: forward and backward passes of images or activations; 1,000 features per second."""
    train, test = table_rows(wildcards)
    options = tuned_options(wildcards)
    views = getattr(options.augment, "views", 1)
    visited = options.step_count(train) * min(options.expected_batch_size(train), train)
    gpu = has_gpu(wildcards, input, attempt, rulename)
    rate = 1000
    if options.from_images or options.cut_blocks:
        rate = (IMAGE_STEP_RATE if options.from_images else CUT_STEP_RATE)[gpu]
    # a private search has a random number of trials, rarely above twice the mean
    method = STUDY.methods[wildcards.method]
    trials = 2 * method.trials if method.head == "tuned" else 1
    return int((30 + (trials * views * visited + test) / rate / 60) * attempt)


def law_memory(wildcards, input, attempt):
    """Memory of representation laws in MB: images as bytes, features of blocks, and copies of the network."""
    rows = sum(
        min(rows, STUDY.representation_law.rows) for rows in table_rows(wildcards)
    )
    views = getattr(STUDY.backbones[wildcards.backbone], "preprocessing", None)
    side = getattr(views, "size", None) or 384
    image = 2 * 3 * side**2 / 1e6
    return int((4000 + 4 * size_mb(input.weights) + rows * (image + 0.1)) * attempt)


def law_minutes(wildcards, input, attempt, rulename):
    """Minutes of representation laws: 8 images per second on four CPUs, and two minutes for a network's blocks."""
    rows = sum(
        min(rows, STUDY.representation_law.rows) for rows in table_rows(wildcards)
    )
    gpu = has_gpu(wildcards, input, attempt, rulename)
    rate = FORWARD_RATE[True] if gpu else 8
    return int((20 + (1 + len(LAW_NETWORKS)) * (2 + rows / rate / 60)) * attempt)


def searching_minutes(wildcards, input, attempt, rulename):
    """Minutes of a search: the time to train a network for each trial."""
    trials = tuned_options(wildcards).search.trials
    return trials * tuning_minutes(wildcards, input, attempt, rulename)


def check_slurm():
    """Raises StudyError if jobs would go to Slurm from a machine without Slurm's commands."""
    command = getattr(workflow.executor_settings, "submit_cmd", None)
    if not command or Path(command).name != "submit.py":
        return
    missing = [name for name in ("sbatch", "squeue") if shutil.which(name) is None]
    if missing:
        raise StudyError(
            f"--profile slurm: this machine has no {' and no '.join(missing)}; log in to the cluster, or leave out "
            "--profile slurm"
        )


def jobs_leave():
    """Returns True if jobs run on other machines; a dry run has no executor, so its settings decide."""
    if not workflow.dryrun:
        return workflow.non_local_exec
    settings = workflow.resource_settings
    return settings.nodes is not None and settings.default_resources is not None


@cache
def known_partitions():
    """Slurm's partitions, requested once; None if Slurm does not answer and the study's device is "cuda".

    Otherwise raises StudyError, because jobs would silently run on CPUs for days.
    """
    check_slurm()
    try:
        return ask_partitions()
    except DpprobeError as error:
        if STUDY.device == "cuda":
            tell(f"{error}: jobs request GPUs unchecked")
            return None
        raise StudyError(
            f"device: {STUDY.device}: {error}, so no partition is known to have GPUs; repair sinfo, or write "
            "`device: cpu` (no GPUs) or `device: cuda` (one GPU per job) in the study"
        ) from None


def gpus_forbidden():
    """Returns True for `--resources gpu=0`, with which no job requests a GPU."""
    limit = workflow.global_resources.get("gpu")
    return limit is not None and limit.value == 0


def asked_resource(name, rulename, wildcards, input, attempt):
    """A job's value of another resource, set by rule, profile or command line; None if not set."""
    resource = workflow.get_rule(rulename).resources.get(name)
    if resource is None:
        return None
    limit = workflow.global_resources.get(name)
    return (
        resource.evaluate(
            wildcards,
            input=input,
            attempt=attempt,
            threads=1,
            rulename=rulename,
            async_run=workflow.async_run,
        )
        .constrain(limit)
        .value
    )


def wanted_partition(rulename, wildcards, input, attempt):
    """The partition that a rule's GPU job requests; None for the user's default."""
    job = (rulename, wildcards, input, attempt)
    return asked_resource("gpu_partition", *job) or asked_resource(
        "slurm_partition", *job
    )


def gpus_at_hand(rulename, wildcards, input, attempt):
    """Returns 1 if a GPU is available to a job, here or in its partition; else 0."""
    if gpus_forbidden():
        return 0
    # a submitted job has the GPUs of its allocation
    if not (workflow.is_main_process and jobs_leave()):
        return min(count_devices(), 1)
    partition = wanted_partition(rulename, wildcards, input, attempt)
    return int(known_partitions().has_gpus(partition))


def network_gpus(wildcards, input, attempt, rulename):
    """The GPUs of a job that runs a backbone: 0 if no network, unless the study's device is "cuda"."""
    if STUDY.device != "auto" or not STUDY.backbones[wildcards.backbone].network:
        return device_gpus(wildcards)
    return gpus_at_hand(rulename, wildcards, input, attempt)


def tuning_gpus(wildcards, input, attempt, rulename):
    """The GPUs of a job that trains a network: one for each of its processes."""
    one = network_gpus(wildcards, input, attempt, rulename)
    return STUDY.fine_tuning.processes * one


def device_gpus(wildcards):
    """The GPUs of a job that is fast even on a CPU: 1 only if the study's device is "cuda"."""
    return int(STUDY.device == "cuda")


@cache
def read_sizes(manifest, modified):
    """The sizes of a fit on a manifest's rows, cached by the file's path and time."""
    body = read_json(Path(manifest))
    return {
        "n": body["rows"],
        "dimension": body["dimension"],
        "classes": len(body["class_names"]),
    }


def fit_gpus(methods):
    """Makes a gpu function for fits of some methods: one GPU if it is available and speeds up a fit.

    Before features exist, their number is unknown, so only studies with device "cuda" request GPUs. Snakemake calls the
    function again when the job is ready. Rows are counted instead of patients, so a job may request a GPU that it does
    not use.

    Args:
      methods: a function that returns the names of a job's methods.
    """

    def gpu(wildcards, input, attempt, rulename):
        if STUDY.device == "cpu":
            return 0
        try:
            sizes = read_sizes(str(input.train), Path(input.train).stat().st_mtime_ns)
            places = {
                place_fit(STUDY.methods[name], "cuda", **sizes)
                for name in methods(wildcards)
            }
        except (OSError, ValueError, KeyError, TypeError, ConfigError):
            # The manifest is missing, damaged or too small; the job that reads it reports the fault.
            return device_gpus(wildcards)
        if places <= {FitPlace()}:
            return 0
        return device_gpus(wildcards) or gpus_at_hand(
            rulename, wildcards, input, attempt
        )

    return gpu


def has_gpu(wildcards, input, attempt, rulename):
    """Returns True if a job requests a GPU, by any setting."""
    return bool(asked_resource("gpu", rulename, wildcards, input, attempt))


def check_devices():
    """Warns, before the first job, of networks without GPUs; raises StudyError if the study's device is "cuda"."""
    insists = STUDY.device == "cuda"
    jobs = [
        job
        for job in workflow.dag.needrun_jobs()
        if runs_network(job)
        or (insists and has_gpu(job.wildcards, job.input, 1, job.rule.name))
    ]
    if not jobs or STUDY.device == "cpu" or (gpus_forbidden() and not insists):
        return
    if not jobs_leave():
        check_processes(jobs)
    lack = partition_lack(jobs) if jobs_leave() else machine_lack(insists)
    if lack and insists:
        raise StudyError(f"device: cuda: {lack}; write auto or cpu")
    if lack:
        tell(f"{lack}: networks run on the CPU")


def runs_network(job):
    """Returns True if a job runs a network and no setting determines its number of GPUs."""
    asks = job.rule.resources.get("gpu") in (network_gpus, tuning_gpus)
    return asks and STUDY.backbones[job.wildcards.backbone].network


def check_processes(jobs):
    """Raises StudyError if a job would train a network on more GPUs than this machine has, but not on the CPU."""
    processes, gpus = STUDY.fine_tuning.processes, count_devices()
    trains = any(job.rule.resources.get("gpu") == tuning_gpus for job in jobs)
    if trains and 0 < gpus < processes:
        raise StudyError(
            f"fine_tuning.processes: {processes}, but this machine has {gpus} GPU(s); write `processes: {gpus}` or "
            "`device: cpu`"
        )


def machine_lack(insists):
    """Explains that this machine has no GPU; None if it has a GPU. Studies are refused only if torch sees no GPU."""
    if count_devices() or (insists and not lacks_gpu()):
        return None
    return "no GPU on this machine"


def partition_lack(jobs):
    """Lists partitions of jobs without GPUs; None if all have GPUs, or Slurm does not answer."""
    partitions = known_partitions()
    if partitions is None:
        return None
    wanted = {
        wanted_partition(job.rule.name, job.wildcards, job.input, 1) for job in jobs
    }
    lacking = [name for name in wanted if not partitions.has_gpus(name)]
    names = sorted(str(partitions.name_partition(name)) for name in lacking)
    remedy = "gpu_partition in the profile names another"
    return f"no GPU in partition {', '.join(names)} ({remedy})" if names else None
