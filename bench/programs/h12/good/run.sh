#!/bin/bash
# GPT 6.7B on one DGX H100 (8 GPUs): tensor parallel 4, data parallel 2.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=8

CHECKPOINT_PATH=${1:-/checkpoints/gpt-6.7b}
TENSORBOARD_PATH=${2:-/logs/gpt-6.7b}
VOCAB_FILE=/data/gpt2/gpt2-vocab.json
MERGE_FILE=/data/gpt2/gpt2-merges.txt
DATA_PATH=/data/pile/pile_text_document

MODEL_ARGS=(
    --use-mcore-models
    --transformer-impl transformer_engine
    --num-layers 32
    --hidden-size 4096
    --num-attention-heads 32
    --seq-length 2048
    --max-position-embeddings 2048
    --position-embedding-type rope
    --untie-embeddings-and-output-weights
)

TRAINING_ARGS=(
    --micro-batch-size 2
    --global-batch-size 512
    --train-iters 150000
    --lr 1.2e-4
    --min-lr 1.2e-5
    --lr-decay-style cosine
    --lr-decay-iters 150000
    --lr-warmup-iters 2000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --init-method-std 0.01
    --bf16
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 1
    --sequence-parallel
    --use-distributed-optimizer
)

DATA_ARGS=(
    --data-path "$DATA_PATH"
    --vocab-file "$VOCAB_FILE"
    --merge-file "$MERGE_FILE"
    --split 949,50,1
)

LOGGING_ARGS=(
    --log-interval 10
    --save-interval 2000
    --eval-interval 1000
    --eval-iters 10
    --save "$CHECKPOINT_PATH"
    --load "$CHECKPOINT_PATH"
    --tensorboard-dir "$TENSORBOARD_PATH"
)

torchrun --standalone --nproc_per_node 8 train.py \
    "${MODEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${LOGGING_ARGS[@]}"
