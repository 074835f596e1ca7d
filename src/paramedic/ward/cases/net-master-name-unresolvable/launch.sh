. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
export WORLD_SIZE=2 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=data0
export MASTER_ADDR=node-1
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=0 node $((rank + 1)) python plain_ddp.py --timeout 12 --steps 8 &
  pids="$pids $!"
done
wait_all 25 $pids
