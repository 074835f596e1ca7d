. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
export MASTER_ADDR=10.10.0.1 MASTER_PORT=29500 WORLD_SIZE=2
export GLOO_SOCKET_IFNAME=data0
for number in 1 2; do on $number sysctl -qw net.ipv4.tcp_retries2=3; done # dead peers are noticed in seconds, not minutes
on 1 ip -timestamp monitor link >logs/node-01-links.log 2>&1 &
monitor=$!
RANK=0 LOCAL_RANK=0 node 1 python plain_ddp.py --timeout 60 --steps 30 &
first=$!
RANK=1 LOCAL_RANK=0 node 2 python plain_ddp.py --timeout 60 --steps 30 &
second=$!
(
  wait_for 'step 10 loss' logs/node-01.log
  on 0 ip link set data0-2 down # the switch port of node-02
  on 0 ip link set data0-1 down # and, a module failing, of node-01
) &
wait_all 20 $first $second
code=$?
kill $monitor
exit $code
