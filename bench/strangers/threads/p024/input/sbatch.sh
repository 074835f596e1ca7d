#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-node=8 -C a100_40g
export XLA_PYTHON_CLIENT_MEM_FRACTION=.94
srun python -m vlm.train --config=configs/pali_1b.py --config.batch=256 --config.fsdp=1 --config.remat=none
