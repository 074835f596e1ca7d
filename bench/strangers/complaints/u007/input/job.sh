#!/bin/bash
#SBATCH -J rs50
#SBATCH -p a100
#SBATCH -N 1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=4
#SBATCH --mem=240G
#SBATCH -t 3-00:00:00
source ~/env/bin/activate
cd $SLURM_SUBMIT_DIR
torchrun --nproc_per_node=8 train.py /ssd/imagenet --model resnetrs50 -b 128 --workers 8 \
   --opt adamw --lr 1e-3 --epochs 300 --aa rand-m9-mstd0.5-inc1
