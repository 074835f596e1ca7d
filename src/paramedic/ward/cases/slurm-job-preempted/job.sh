#!/bin/bash
#SBATCH --job-name=train
#SBATCH --partition=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=logs/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --no-requeue
export MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=$SLURM_NTASKS
srun --label bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python plain_ddp.py --timeout 60 --steps 20 --checkpoint-every 4 --atomic --resume'
