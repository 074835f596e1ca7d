#!/bin/sh
# ppo baseline
set -a
. ./train.env
set +a
env | sort > env.dump
exec python -m torch.distributed.run --nnodes=1 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 -m ppo.main --config ppo.json
