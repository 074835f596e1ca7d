#!/bin/bash
cd /home/tz/diffusers/examples/controlnet
export HF_HUB_OFFLINE=1
export WANDB_NAME=cn-depth-v5
accelerate launch --config_file acc.yaml train_controlnet.py \
  --pretrained_model_name_or_path=/models/sd-v1-5 \
  --train_data_dir=/data/depth_pairs --resolution=512 \
  --train_batch_size=8 --gradient_accumulation_steps=1 --learning_rate=1e-5 \
  --max_train_steps=2000 --mixed_precision=bf16 --checkpointing_steps=1000 \
  --output_dir=/out/cn-depth-v5 --seed=2
