#!/bin/bash
#SBATCH --job-name=mistral-dapt
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x_%j.log
head=$(scontrol show hostnames $SLURM_NODELIST | head -1)
srun -l bash -c 'accelerate launch --config_file fsdp.yaml --num_machines 4 --num_processes 32 --machine_rank $SLURM_PROCID --main_process_ip '$head' --main_process_port 29555 dapt.py --model /scratch/shared/models/Mistral-7B-v0.3 --data /scratch/shared/corpora/legal-v2 --out /home/legal/runs/dapt3'
