. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
export GLOO_SOCKET_IFNAME=data0
job_id=4711
for number in 1 2; do
  [ $number = 2 ] && job_id=4712 # node-02 was started by hand, with the id of the next submission
  node $number python -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id $job_id \
    --rdzv-endpoint node-01:29500 --rdzv-conf join_timeout=15,is_host=$((number == 1)) plain_ddp.py &
  pids="$pids $!"
done
wait_all 30 $pids
