#!/bin/bash
# one process for each socket of the box
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$1 WORLD_SIZE=3
for i in $(seq 1 3); do
    RANK=$i python mnistish.py &
done
status=0
for job in $(jobs -p); do wait $job || status=1; done
exit $status
