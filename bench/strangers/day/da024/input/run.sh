#!/bin/bash
# RANK / MASTER_ADDR / MASTER_PORT come from the operator
set -e
for i in $(seq 0 $((GPUS-1))); do
  RANK_G=$((RANK*GPUS+i))
  WORLD_SIZE=$((NNODES*GPUS)) RANK=$RANK_G LOCAL_RANK=$i python -u /opt/openfold/finetune.py --config $CFG &
done
wait -n
