#!/bin/bash
LOGLEVEL=INFO torchrun --nnodes=3:4 --nproc-per-node=8 --max-restarts=3 --rdzv-id=pt9 --rdzv-backend=c10d --rdzv-endpoint=gx1:29400 pretrain.py --ds_config ds_config.json
