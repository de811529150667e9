"""The GPUs that jobs ask for: by the study's device, and by what this machine or a partition of Slurm has."""

from dpprobe.devices import count_devices, lacks_gpu
from dpprobe.errors import DpprobeError
from dpprobe.heads.fit_device import FitPlace, place_fit
from dpprobe.study.slurm_partitions import ask_partitions


def jobs_leave():
    """Returns True if jobs run elsewhere than here, also of a dry run, which has no executor of its own."""
    if not workflow.dryrun:
        return workflow.non_local_exec
    settings = workflow.resource_settings
    return settings.nodes is not None and settings.default_resources is not None


@cache
def known_partitions():
    """Slurm's partitions, asked for once; None, and a line that says why, where Slurm does not answer."""
    try:
        return ask_partitions()
    except DpprobeError as error:
        print(
            f"dpprobe: Slurm does not answer, so jobs ask for no GPU (device: cuda asks anyway): {error}",
            file=sys.stderr,
        )
        return None


def asked_resource(name, rulename, wildcards, input, attempt):
    """The value of another resource of a job, as the rule, the profile or the command line gives it; None without."""
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
    """The partition that a GPU job of a rule asks for; None for the user's default."""
    job = (rulename, wildcards, input, attempt)
    return asked_resource("gpu_partition", *job) or asked_resource(
        "slurm_partition", *job
    )


def gpus_at_hand(rulename, wildcards, input, attempt):
    """One if a job may have a GPU, here or in its partition; else none."""
    # a job that was submitted has what its partition gave it
    if not (workflow.is_main_process and jobs_leave()):
        return min(count_devices(), 1)
    partitions = known_partitions()
    if partitions is None:
        return 0
    partition = wanted_partition(rulename, wildcards, input, attempt)
    return int(partitions.has_gpus(partition))


def network_gpus(wildcards, input, attempt, rulename):
    """The GPUs of a job that runs a network; none with a backbone that is none, unless the study insists on GPUs."""
    if STUDY.device != "auto" or not STUDY.backbones[wildcards.backbone].network:
        return device_gpus(wildcards)
    return gpus_at_hand(rulename, wildcards, input, attempt)


def device_gpus(wildcards):
    """The GPUs of a job that is fast without: one only if the study insists, for the job then fails without."""
    return int(STUDY.device == "cuda")


@cache
def read_sizes(manifest, modified):
    """The sizes of a fit on the rows of a manifest, which was modified at that time."""
    body = read_json(Path(manifest))
    return {
        "n": body["rows"],
        "dimension": body["dimension"],
        "classes": len(body["class_names"]),
    }


def fit_gpus(methods):
    """Makes a gpu function for fits of some methods: one GPU if a fit pays on one, and the job may have one.

    Before features exist, their number is unknown: then only a study that insists asks. Snakemake asks again when the
    job is ready. Rows are counted instead of patients, so a job may ask for a GPU that it leaves idle.

    Args:
      methods: returns the names of a job's methods.
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
            # not made yet, damaged or too small, which the job that reads it tells
            return device_gpus(wildcards)
        if places <= {FitPlace()}:
            return 0
        return device_gpus(wildcards) or gpus_at_hand(
            rulename, wildcards, input, attempt
        )

    return gpu


def has_gpu(wildcards, input, attempt, rulename):
    """Returns True if a job asks for a GPU, whoever decided so."""
    return bool(asked_resource("gpu", rulename, wildcards, input, attempt))


def check_devices():
    """Says, before the first job, that networks run without GPUs; raises StudyError if the study insists on one."""
    insists = STUDY.device == "cuda"
    jobs = [
        job
        for job in workflow.dag.needrun_jobs()
        if runs_network(job)
        or (insists and has_gpu(job.wildcards, job.input, 1, job.rule.name))
    ]
    if not jobs or STUDY.device == "cpu":
        return
    lack = partition_lack(jobs) if jobs_leave() else machine_lack(insists)
    if lack and insists:
        raise StudyError(f"device: cuda: {lack}; write auto or cpu")
    if lack:
        # one write, or a line of the first job may come between the text and its end
        sys.stderr.write(f"dpprobe: {lack}: networks run on the CPU\n")


def runs_network(job):
    """Returns True if a job runs a network, and nobody has set its GPUs."""
    asks = job.rule.resources.get("gpu") == network_gpus
    return asks and STUDY.backbones[job.wildcards.backbone].network


def machine_lack(insists):
    """Returns that this machine has no GPU; None if it has one. Torch is asked before a study is refused."""
    if count_devices() or (insists and not lacks_gpu()):
        return None
    return "no GPU on this machine"


def partition_lack(jobs):
    """Returns which partitions of jobs have no GPU; None if all have, or Slurm does not answer."""
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
