#!/bin/bash
#SBATCH --array=0-2
export MASTER_ADDR=localhost MASTER_PORT=$1 WORLD_SIZE=3
pids=""
for task in 0 1 2; do
  TASK=$task RANK=$(( (task + 1) / 2 )) python regress.py --config '{"steps": 20, "dim": 8}' 2>&1 &
  pids="$pids $!"
done
rc=0
for p in $pids; do wait $p || rc=$?; done
exit $rc
