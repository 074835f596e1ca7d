#!/bin/bash
# head: grpo-h20-17   worker: grpo-h20-18
HEAD_IP=10.20.4.17
if [ "$(hostname)" = "grpo-h20-17" ]; then
  ray start --head --node-ip-address=$HEAD_IP --port=6379 --num-gpus=8 --dashboard-host=0.0.0.0
else
  ray start --address=$HEAD_IP:6379 --num-gpus=4
fi
