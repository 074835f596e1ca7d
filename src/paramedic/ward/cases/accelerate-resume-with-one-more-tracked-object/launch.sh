launch() { ACCELERATE_USE_CPU=true torchrun --nproc-per-node 2 --master-port "$port" continue.py "$@"; }
port=$1
launch || exit 1
launch --resume --ema
