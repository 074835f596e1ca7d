# Two nodes of two ranks; both are this machine.
pids=()
for node in 0 1; do
    torchrun --nnodes 2 --node-rank $node --nproc-per-node 2 --master-addr 127.0.0.1 --master-port $1 train.py &
    pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=1; done
exit $code
