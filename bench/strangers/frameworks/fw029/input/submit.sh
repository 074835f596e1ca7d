#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-node=8 -J rerank16
srun --label bash -c 'accelerate launch --config_file acc_2n.yaml train_rerank.py --bs 16 --epochs 2 --out /proj/rerank/run16'
