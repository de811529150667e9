"""Embeds the features of one (dataset, backbone) in the plane."""

from pathlib import Path

from dpprobe.logs import job_log

if __name__ == "__main__":
    with job_log(snakemake.log[0]):
        from dpprobe.analyses.tsne.measure import tsne

        options = snakemake.params.options
        tsne(
            Path(snakemake.input.manifest),
            Path(snakemake.output[0]),
            points=options["points"],
            perplexity=options["perplexity"],
            components=options["components"],
            seed=snakemake.params.seed,
            threads=snakemake.threads,
        )
