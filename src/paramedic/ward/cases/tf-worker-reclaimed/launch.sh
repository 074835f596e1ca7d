#!/bin/bash
# Starts the workers, each with its own log, and starts all of them again if one is lost.
restarts=0
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1

reclaim() {  # the second host is a spot instance; its provider takes it back
    until grep -q "step 12 loss" logs/worker-1.0.log 2>/dev/null; do sleep 0.2; done
    kill -9 "$1"
}

for attempt in $(seq 0 $restarts); do
    export MASTER_PORT=$(python -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
    for rank in 0 1; do
        RANK=$rank python train.py > logs/worker-$rank.$attempt.log 2>&1 &
        workers[rank]=$!
    done
    test $attempt -gt 0 || reclaim ${workers[1]} &
    failed=0
    for rank in 1 0; do
        wait ${workers[rank]} 2>/dev/null
        code=$?
        echo "$(date +%T) attempt $attempt: worker $rank ended with code $code"
        test $code -eq 0 || failed=1
    done
    test $failed -eq 0 && exit 0
done
exit 1
