#!/bin/bash
# Starts a worker process for each entry of the cluster.
export WORLD_SIZE=2
port=$(python -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
cluster="\"127.0.0.1:$port\", \"127.0.0.1:$((port + 1))\""

task_config() {
    echo "{\"cluster\": {\"worker\": [$cluster]}, \"task\": {\"type\": \"worker\", \"index\": $1}}"
}

for rank in 0 1; do
    TF_CONFIG=$(task_config $rank)
    RANK=$rank python train.py > logs/worker-$rank.log 2>&1 &
    workers[rank]=$!
done

code=0
for worker in "${workers[@]}"; do wait "$worker" || code=$?; done
exit $code
