#!/bin/bash
#SBATCH -J esm650
#SBATCH -p bio
#SBATCH --ntasks-per-node=8 --gpus-per-node=8 --exclusive
#SBATCH -t 48:00:00
# usage: sbatch -N <nodes> submit.sh
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)
export MASTER_PORT=29511
export WORLD_SIZE=24
export NCCL_SOCKET_IFNAME=bond0
srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec python3 -m esm.train --config cfg/650m.yaml'
