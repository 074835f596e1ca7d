set -e
job() { torchrun --nproc-per-node=2 --master-port=$port shardtrain.py "$@"; }
port=$1
job --steps 6 --width 32
job --steps 12 --width $2 --resume
