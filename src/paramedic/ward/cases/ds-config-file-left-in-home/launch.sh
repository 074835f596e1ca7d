#!/bin/bash
set -e
DS_CONFIG=/home/mlteam/configs/stage1.json
deepspeed --num_gpus 2 --master_port "$1" sentiment.py --ds "$DS_CONFIG" --steps 10
