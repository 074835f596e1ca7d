#!/bin/bash
#SBATCH --job-name=galactica-ft
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --gres=gpu:a6000:4
#SBATCH --cpus-per-task=24
#SBATCH --mem=400G
#SBATCH --output=%x-%j.log

module purge
module load GCC/11.3.0
module load CUDA/11.8.0
module load Anaconda3/2023.03
source activate /proj/envs/ds121

which nvcc; nvcc --version | tail -n 2
python -c "import torch; print(torch.__version__, torch.version.cuda)"
deepspeed --num_gpus=4 finetune.py --deepspeed_config ds.json --epochs 2 --seed 12
