. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
for number in 1 2; do
  node $number python -m torch.distributed.run --nnodes 2 --node-rank $((number - 1)) --nproc-per-node 1 --master-addr node-1 --master-port 29500 plain_ddp.py &
  pids="$pids $!"
done
wait_all 20 $pids
