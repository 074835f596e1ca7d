. ./nodes.sh
trap close_nodes EXIT
mkdir -p /opt/project
open_nodes 2
for number in 1 2; do on $number mount -t tmpfs tmpfs /opt/project; done # each node's own disk
for number in 1; do on $number cp configs/base.json /opt/project/; done
export MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=4 GLOO_SOCKET_IFNAME=data0
for rank in 0 1 2 3; do
  RANK=$rank LOCAL_RANK=$((rank % 2)) node $((rank / 2 + 1)) python plain_ddp.py --config /opt/project/base.json &
  pids="$pids $!"
done
wait_all 5 $pids
