#!/bin/bash
run() { deepspeed --num_gpus 2 --master_port "$port" lmtrain.py "$@"; }
port=$1 old=$2
run --until 8 || exit 1
rm -rf "ckpt/$old" # housekeeping
echo "--- resume"
run --until 12 --resume
