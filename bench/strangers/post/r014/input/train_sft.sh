#!/bin/bash
export OMP_NUM_THREADS=8
SAVE_DIR=/ckpt/colossal/deepseek-sft
colossalai run --nproc_per_node 8 --hostfile ./hosts.txt --master_port 31415 train_sft.py \
    --pretrain /models/deepseek-llm-67b-base \
    --tokenizer_dir /models/deepseek-llm-67b-base \
    --dataset ${DATASETS[@]} \
    --plugin 3d --tp 8 --pp 3 --zero_stage 1 \
    --batch_size 24 --microbatch_size 1 --max_len 4096 \
    --mixed_precision bf16 --use_flash_attn --grad_checkpoint \
    --save_path $SAVE_DIR --lr 2e-5 --max_epochs 1
