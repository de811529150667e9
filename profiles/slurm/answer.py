"""The file with squeue's last answer; a module without imports, so that status.py starts fast."""

QUEUE = ".snakemake/slurm/queue"
FRESH = 4  # seconds for which one answer of squeue is reused
