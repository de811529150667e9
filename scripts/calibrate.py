"""Finds the noise multipliers of every method at one epsilon."""

from pathlib import Path

from dpprobe.heads.registry import method_options
from dpprobe.logs import job_log
from dpprobe.privacy.risk import read_budget

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.data.table import read_info
        from dpprobe.privacy.plan import Patients
        from dpprobe.privacy.target import Target
        from dpprobe.training.plan_file import write_plans

        privacy = snakemake.params.privacy
        output = Path(snakemake.output[0])
        target = Target(
            n=read_info(Path(snakemake.input.info)).train_units(privacy["unit"]),
            unit=privacy["unit"],
            epsilon=read_budget(snakemake.wildcards.epsilon),
            delta=privacy["delta"],
            accountant=privacy["accountant"],
            patients=Patients(**privacy["patients"]) if privacy["patients"] else None,
            above=privacy.get("allow_delta_above_one_over_n", False),
        )
        write_plans(
            {name: method_options(options) for name, options in snakemake.params.methods.items()},
            target,
            output=output,
            # one file for each (n, sampler, steps, epsilon, delta, accountant), shared by all
            cache=output.parent.parent,
            seeds=snakemake.params.seeds,
        )
