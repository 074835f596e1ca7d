#!/bin/bash
# pdsh -w c3-gpu-[11-12,17-18] /srv/encdec/launch.sh
export LOGLEVEL=INFO
exec torchrun --nnodes=2:4 --nproc-per-node=8 --max-restarts=3 \
  --rdzv-id=encdec3b --rdzv-backend=c10d --rdzv-endpoint=c3-gpu-11:29400 \
  /srv/encdec/train.py --cfg /srv/encdec/cfg/3b.yaml > /srv/encdec/agents/$(hostname).log 2>&1
