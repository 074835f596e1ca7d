# Start the job on the two nodes of the allocation; here both are this machine.
PORT=$1
pids=()
for node in 0 1; do
    torchrun --standalone --nproc-per-node 2 train.py --name big-batch 2>&1 | sed -u "s/^/node-0$node: /" &
    pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=1; done
exit $code
