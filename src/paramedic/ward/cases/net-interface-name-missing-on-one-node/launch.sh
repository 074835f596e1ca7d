. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
export MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=4
for rank in 0 1 2 3; do
  number=$((rank / 2 + 1))
  [ $number = 1 ] && export GLOO_SOCKET_IFNAME=data0 || export GLOO_SOCKET_IFNAME=ens1f0 # node-02's old profile
  RANK=$rank LOCAL_RANK=$((rank % 2)) node $number python plain_ddp.py --timeout 12 --steps 8 &
  pids="$pids $!"
done
wait_all 25 $pids
