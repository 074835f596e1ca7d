# Two ranks with a network of 200 Mbit/s between them.
test "$1" = inside || exec unshare --net bash "$0" inside
ip link set lo mtu 1500 up
tc qdisc add dev lo root tbf rate 200mbit burst 128k latency 400ms
exec torchrun --standalone --nproc-per-node 2 train.py
