#!/bin/bash
# was 1 node, TP=2
torchrun --nnodes 2 --nproc_per_node 8 --node_rank $1 --master_addr mg1 --master_port 6001 pretrain_gpt.py \
  --tensor-model-parallel-size 4 --ckpt-format torch --load /gpfs/ck/ocean --save /gpfs/ck/ocean \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 --bf16
