#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --output=logs/slurm-%j.out
export MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=$SLURM_NTASKS
srun --label bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python plain_ddp.py --timeout 60 --steps 6'
