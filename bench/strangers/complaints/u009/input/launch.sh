#!/bin/bash
for i in 00 01 02 03; do
  ssh jx-$i "cd ~/vit && COORD=jx-00:8476 NPROC=4 PROC_ID=$((10#$i)) XLA_PYTHON_CLIENT_MEM_FRACTION=.92 \
     nohup python train.py --config configs/vit_b16.py > jx-$i.log 2>&1 &"
done
