"""Plans a study with Snakemake and describes its jobs.

Run as `python -m tests.support.planned_jobs SNAKEFILE STUDY [--digest]` in a folder without
results; it prints JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Digest = dict[str, int | str]
FIELDS = ("wildcards", "input", "output", "params", "log", "benchmark", "message", "threads")


def describe_files(files: Any) -> dict[str, Any]:
    """Describes a job's inputs or outputs: their paths in order, and their named groups."""
    return {
        "paths": [str(path) for path in files],
        "names": {name: str(value).split() for name, value in sorted(files.items()) if str(value)},
        "updated": sorted(str(path) for path in files if "update" in (path.flags or {})),
        "reported": {
            str(path): [
                Path(str(report.caption)).name,
                report.category,
                report.subcategory,
                report.labels,
            ]
            for path in files
            if (report := (path.flags or {}).get("report"))
        },
    }


def describe_job(job: Any) -> Job:
    """Describes a job with plain values; paths are relative to the working directory."""
    return {
        "rule": job.rule.name,
        "wildcards": dict(job.wildcards_dict),
        "input": describe_files(job.input),
        "output": describe_files(job.output),
        # `call` contains the Snakefile's path; `state` and `files` contain modification times
        "params": {
            name: repr("files" if name in {"state", "files"} and value else value)
            for name, value in sorted(job.params.items())
            if name != "call"
        },
        "log": [str(path) for path in job.log],
        "benchmark": str(job.benchmark),
        "message": job.message,
        "threads": job.threads,
    }


def plan_jobs(snakefile: Path, study: Path | None) -> list[Job]:
    """Plans the jobs of a study without results; `study` None is the default study."""
    # imported here, so that tests that compare digests start without Snakemake
    from snakemake.api import SnakemakeApi
    from snakemake.scheduling.job_scheduler import JobScheduler
    from snakemake.settings.types import (
        ConfigSettings,
        DAGSettings,
        OutputSettings,
        Quietness,
        ResourceSettings,
        StorageSettings,
    )

    # saves half of the time; only the plan is used, so no job needs to be selected and printed
    JobScheduler.schedule = lambda *_: True
    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL}, dryrun=True)) as api:
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=2),
            config_settings=ConfigSettings(configfiles=[study] if study else []),
            storage_settings=StorageSettings(default_storage_prefix=""),
            snakefile=snakefile,
        )
        dag = workflow.dag(dag_settings=DAGSettings())
        dag.execute_workflow(executor="local", pseudo_executor="dryrun")
        jobs = map(describe_job, workflow._workflow.dag.jobs)
        return sorted(jobs, key=lambda job: json.dumps([job["rule"], job["wildcards"]]))


def digest_jobs(jobs: list[Job]) -> dict[str, Digest]:
    """Returns each rule's number of jobs, and a hash of each field of their descriptions."""
    by_rule = defaultdict(list)
    for job in jobs:
        by_rule[job["rule"]].append(job)
    return {
        rule: {"jobs": len(of_rule)}
        | {field: _hash([job[field] for job in of_rule]) for field in FIELDS}
        for rule, of_rule in by_rule.items()
    }


def sum_up(digests: Mapping[str, Digest]) -> str:
    """Returns the total number of jobs of several digests, and one hash per field."""
    count = sum(int(each["jobs"]) for each in digests.values())
    hashes = {
        field: _hash({name: each[field] for name, each in digests.items()}) for field in FIELDS
    }
    return f"{count} jobs " + " ".join(f"{field}={text}" for field, text in hashes.items())


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--digest"]
    snakefile, study = (Path(word).resolve() for word in words)
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        jobs = plan_jobs(snakefile, None if study.name == "config.yaml" else study)
    described = digest_jobs(jobs) if "--digest" in sys.argv else jobs
    print(json.dumps(described, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
