"""Finds the noise multipliers of every method at one epsilon."""

from pathlib import Path

from dpprobe.files.logs import job_log
from dpprobe.heads.registry import method_options

if __name__ == "__main__":
    with job_log(snakemake.log[0], snakemake.output):
        from dpprobe.data.table import read_info
        from dpprobe.privacy.target import Terms
        from dpprobe.training.plan_file import write_plans

        privacy = snakemake.params.privacy
        output = Path(snakemake.output[0])
        target = Terms.of_params(snakemake.wildcards.epsilon, privacy).make_target(
            read_info(Path(snakemake.input.info)).train_units(privacy["unit"]),
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
