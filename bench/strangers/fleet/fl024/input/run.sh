#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=4 --gpus-per-task=1 --cpus-per-task=16
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export MASTER_PORT=28111
srun -l bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python -u train_ddpm.py --device auto'
