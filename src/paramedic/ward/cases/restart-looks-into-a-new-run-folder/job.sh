#!/bin/bash
export OMP_NUM_THREADS=1
for attempt in 1 2 3; do
  python -m torch.distributed.run --nproc-per-node 2 --master-port 29533 train.py && exit 0
  echo "attempt $attempt ended early, starting again"
  sleep 2
done
exit 1
