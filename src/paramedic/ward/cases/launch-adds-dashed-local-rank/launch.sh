#!/bin/bash
python -m torch.distributed.launch --nproc_per_node=2 --master_port=$1 main_pretrain.py \
    --batch_size 16 --epochs 3 --blr 1.5e-2
