"""The GPUs that jobs request, by the study's device and by the GPUs of this machine or a Slurm partition."""

from dpprobe.devices import count_devices, lacks_gpu
from dpprobe.errors import DpprobeError
from dpprobe.heads.fit_device import FitPlace, place_fit
from dpprobe.study.slurm_partitions import ask_partitions


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
    try:
        return ask_partitions()
    except DpprobeError as error:
        if STUDY.device == "cuda":
            print(f"dpprobe: {error}: jobs request GPUs unchecked", file=sys.stderr)
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
    # a submitted job has the GPUs that its partition gave it
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
    """The GPUs of a job that is fast on a CPU: 1 only if the study's device is "cuda"."""
    return int(STUDY.device == "cuda")


@cache
def read_sizes(manifest, modified):
    """The sizes of a fit on a manifest's rows; the file's time is part of the cache's key."""
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
        # one write, so that no line of the first job splits the text
        sys.stderr.write(f"dpprobe: {lack}: networks run on the CPU\n")


def runs_network(job):
    """Returns True if a job runs a network, and no setting decides its GPUs."""
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
