# two agents, as on two nodes
for node in 0 1; do
  torchrun --nnodes 2 --node-rank $node --nproc-per-node 2 --master-addr 127.0.0.1 --master-port $1 contrastive.py >logs/agent-$node.log 2>&1 &
done
rc=0
for p in $(jobs -p); do wait $p || rc=1; done
exit $rc
