#!/bin/bash
# usage: launch.sh PORT MACHINES PROCESSES
exec python -m accelerate.commands.launch --multi_gpu --num_machines "$2" --machine_rank 0 --num_processes "$3" --mixed_precision no --dynamo_backend no \
  --rdzv_conf timeout=30 --main_process_ip 127.0.0.1 --main_process_port "$1" hf_fit.py
