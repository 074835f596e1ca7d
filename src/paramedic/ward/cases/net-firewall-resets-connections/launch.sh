. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
export MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=2 GLOO_SOCKET_IFNAME=data0
RANK=0 LOCAL_RANK=0 node 1 python plain_ddp.py --timeout 60 --steps 30 &
first=$!
RANK=1 LOCAL_RANK=0 node 2 python plain_ddp.py --timeout 60 --steps 30 &
second=$!
(
  wait_for 'step 10 loss' logs/node-01.log
  for number in 1 2; do on $number bash firewall.sh; done # the hourly run of the configuration management
) &
wait_all 5 $first $second
