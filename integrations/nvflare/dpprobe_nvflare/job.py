"""The job, for NVFLARE's simulator and for submission.

python -m dpprobe_nvflare.job east north south --export --export-dir jobs
python -m dpprobe_nvflare.job east north south --workspace simulated
"""

from __future__ import annotations

import argparse

from nvflare.job_config.api import FedJob
from nvflare.recipe import SimEnv
from nvflare.recipe.spec import Recipe

from dpprobe_nvflare.controller import SitesController
from dpprobe_nvflare.executor import SiteExecutor
from dpprobe_nvflare.turns import FIRST, LATER

NAME = "dpprobe"


def make_recipe(clients: list[str]) -> Recipe:
    """Makes a job that needs all `clients`, and whose code is what each of them has installed."""
    job = FedJob(name=NAME, min_clients=len(clients), mandatory_clients=clients)
    job.set_app_packages(["dpprobe_nvflare"])
    job.to_server(SitesController(clients))
    for client in clients:
        job.to(SiteExecutor(), client, tasks=[FIRST, LATER])
    return Recipe(job)


def main() -> None:
    """Simulates the job, or exports it with `--export`, which NVFLARE takes from the command."""
    parser = argparse.ArgumentParser(description="train one head at several sites over NVFLARE")
    parser.add_argument("clients", nargs="+", help="the names of all clients of the job")
    parser.add_argument("--workspace", default="simulated", help="the simulator's folder")
    asked = parser.parse_args()
    environment = SimEnv(clients=asked.clients, workspace_root=asked.workspace)
    make_recipe(asked.clients).execute(environment)


if __name__ == "__main__":
    main()
