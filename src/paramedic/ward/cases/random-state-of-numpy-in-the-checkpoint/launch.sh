set -e
go() { torchrun --nproc_per_node 2 --master_port $PORT main.py "$@"; }
PORT=$1
go --epochs 2
go --epochs 4 --resume checkpoints/last.pth
