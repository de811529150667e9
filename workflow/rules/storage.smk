"""The study's folders in a storage provider, such as a bucket (docs/storage.md)."""

import os

from dpprobe.study.local_copies import note_copies

PROVIDER = workflow.storage_settings.default_storage_provider
IN_STORAGE = PROVIDER is not None
if IN_STORAGE:
    note_copies(
        workflow.storage_settings.local_storage_prefix,
        PROVIDER,
        workflow.storage_settings.default_storage_prefix or "",
    )


def on_this_machine(path):
    """A file that jobs on Snakemake's own machine read or write, outside any storage provider."""
    return local(path) if IN_STORAGE else path


def check_storage(jobs):
    """Raises an error, with a storage provider, for absolute folders, and for releases (their ledger needs locks)."""
    if not IN_STORAGE:
        return
    for folder in (STUDY.results_dir, STUDY.data_dir):
        if os.path.isabs(folder):
            raise StudyError(
                f"--default-storage-provider: {folder} is an absolute path; write results_dir and data_dir "
                "relative to the prefix"
            )
    if any(job.rule.name == rule_name("make_release") for job in jobs):
        raise StudyError(
            "--default-storage-provider: releases need a ledger with locks; make them from results on a disk, "
            "without this option: docs/storage.md"
        )
