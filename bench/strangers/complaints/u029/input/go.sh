#!/bin/bash
export TOKENIZERS_PARALLELISM=false
python run_lora.py --model /m/mistral-7b --data notes_v4.jsonl --per_device_train_batch_size 4 \
  --gradient_accumulation_steps 4 --epochs 2 --lr 2e-5 --mixed_precision bf16 2>&1 | tee train.log
