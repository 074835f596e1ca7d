#!/usr/bin/env bash
# usage: launch.sh [gpus]
GPUS=${GPUS:-2}
PYTHONPATH="$(dirname $0)":$PYTHONPATH \
torchrun --nproc_per_node=$GPUS --rdzv-backend=c10d --rdzv-endpoint=localhost:0 tools/train_net.py --max-iter 20
