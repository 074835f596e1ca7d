#!/bin/bash
set -e
docker build --progress=plain -f Dockerfile.cai -t reg.local/qwen-sft:cai045 .
docker push reg.local/qwen-sft:cai045
colossalai run --hostfile hosts16.txt --nproc_per_node 8 --master_port 30311 sft.py --plugin hybrid_parallel --tp 4 --pp 2 --zero 1
