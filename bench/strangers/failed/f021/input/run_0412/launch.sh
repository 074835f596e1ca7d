#!/bin/bash
# manual grad sync variant (no DDP wrapper), see sync.py
srun -N2 --ntasks-per-node=4 --output=run_0412/stdout.%t python train.py --steps 20000 --sync-every 1
