NNODES=3 GPUS_PER_NODE=8
MODEL_ARGS="--num-layers 48 --hidden-size 6144 --num-attention-heads 48 --seq-length 4096 --max-position-embeddings 4096"
PAR="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"
BATCH="--micro-batch-size 1 --global-batch-size 384"
