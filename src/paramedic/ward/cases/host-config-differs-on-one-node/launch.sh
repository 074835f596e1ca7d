. ./nodes.sh
trap close_nodes EXIT
mkdir -p /opt/project
open_nodes 2
for number in 1 2; do on $number mount -t tmpfs tmpfs /opt/project; done # each node's own disk
for number in 1; do on $number cp configs/base.json /opt/project/; done
on 2 test -e /opt/project/base.json || on 2 cp configs/base-of-last-week.json /opt/project/base.json # still there
export MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=2 GLOO_SOCKET_IFNAME=data0
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=0 node $((rank + 1)) python plain_ddp.py --config /opt/project/base.json --timeout 30 &
  pids="$pids $!"
done
wait_all 5 $pids
