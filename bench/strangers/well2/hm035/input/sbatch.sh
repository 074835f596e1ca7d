#!/bin/bash
#SBATCH --time=02:30:00
#SBATCH --signal=SIGUSR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8
srun python train_asr.py
