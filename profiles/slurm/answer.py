"""The file with squeue's last answer. It imports nothing, as status.py has to start at once."""

QUEUE = ".snakemake/slurm/queue"
FRESH = 4  # seconds for which one answer of squeue serves
