#!/bin/bash
# Four workers by Slurm, one on each node:
#
#   sbatch slurm.sh
#
# Three minutes before the time is over all workers get SIGUSR1, save at the same batch and end with
# status 75: the job is queued again. Slurm queues it again by itself when a node fails or another job
# takes its place (SIGTERM, which saves too). When a worker is lost the others end with an error, and
# all start again in the same allocation. All go on at the batch after the last checkpoint.
#SBATCH --job-name=clicks
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@180
set -u

SOK_EMBED_SECRET=$(openssl rand -hex 32) || exit
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head --lines=1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export SOK_EMBED_SECRET MASTER_ADDR MASTER_PORT

# Workers end by themselves when one is lost. If Slurm killed those that are a moment behind the first
# with status 75, the status of the step would be that of a kill.
for _ in 1 2 3; do
  srun --kill-on-bad-exit=0 python "${TRAIN:-train.py}" "${CHECKPOINTS:-/shared/clicks}"
  status=$?
  case $status in
    0) exit 0 ;;
    75) exec scontrol requeue "$SLURM_JOB_ID" ;; # all have saved
  esac
done
exit "$status"
