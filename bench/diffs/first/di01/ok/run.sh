#!/usr/bin/env bash
set -eo pipefail
source /home/jlind/venvs/reward/bin/activate
export OMP_NUM_THREADS=8
export TOKENIZERS_PARALLELISM=false
export WANDB_PROJECT=reward-models
pip freeze > pip_freeze.txt
torchrun --standalone --nproc_per_node 4 --master_port 29533 train_reward.py \
    --model_name_or_path /data/models/Qwen2-1.5B \
    --train_file /data/prefs/helpful_v3.jsonl \
    --output_dir /data/runs/rm-q2-1112 \
    --per_device_train_batch_size 8 --gradient_accumulation_steps 2 \
    --learning_rate 9e-6 --num_train_epochs 1 --bf16 --gradient_checkpointing \
    --logging_steps 10 --save_steps 500 --seed 42 --report_to wandb 2>&1 | tee train.log
