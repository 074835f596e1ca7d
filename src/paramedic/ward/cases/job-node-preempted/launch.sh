. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
export GLOO_SOCKET_IFNAME=data0
attempts=1
for attempt in $(seq $attempts); do
  pids=
  for number in 1 2; do
    node $number python -m torch.distributed.run --nnodes 2 --node-rank $((number - 1)) --nproc-per-node 1 \
      --master-addr node-01 --master-port 29500 plain_ddp.py --steps 24 --timeout 20 --checkpoint-every 4 --atomic --resume &
    pids="$pids $!"
  done
  [ $attempt = 1 ] && (
    wait_for 'step 10 loss' logs/node-02.log
    kill -TERM ${pids##* } # node-02 is wanted by a job of higher priority
    sleep 5
    kill -KILL ${pids##* } 2>/dev/null
  ) &
  wait_all 8 $pids && exit 0
done
exit 1
