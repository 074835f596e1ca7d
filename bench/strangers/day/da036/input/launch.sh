#!/bin/bash
#SBATCH -N 8 --ntasks-per-node=8 --gpus-per-node=8 -t 02:00:00
srun bash -c "python pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --train-iters 1000 --save /ckpt/gpt8b --load /ckpt/gpt8b --save-interval 500 --eval-interval 500"
