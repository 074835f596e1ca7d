. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
for number in 1 2; do on $number bash firewall.sh; done
export MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=2 GLOO_SOCKET_IFNAME=data0
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=0 node $((rank + 1)) python plain_ddp.py --timeout 10 --steps 8 &
  pids="$pids $!"
done
wait_all 15 $pids
