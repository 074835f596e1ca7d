#!/bin/bash
#SBATCH -J fsdp-13b
#SBATCH -N 2
#SBATCH -w r3u11,r3u13
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH -o fsdp-%j.log
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET
export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3
export MASTER_ADDR=r3u11 MASTER_PORT=$((30000+SLURM_JOB_ID%5000))
srun --export=ALL python fsdp_train.py --config 13b.yaml
