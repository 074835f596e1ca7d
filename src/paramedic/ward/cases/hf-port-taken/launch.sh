#!/bin/bash
# Two machines of one process each, both on this host.
port=$1
machine() {
  python -m accelerate.commands.launch --multi_gpu --num_machines 2 --machine_rank "$1" --num_processes 2 --mixed_precision no --dynamo_backend no \
    --main_process_ip 127.0.0.1 --main_process_port "$port" hf_fit.py
}
machine 1 &
other=$!
machine 0
status=$?
if [ $status -ne 0 ]; then
  kill "$other"
  exit $status
fi
wait "$other"
