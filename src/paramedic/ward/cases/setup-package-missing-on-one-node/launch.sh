. ./nodes.sh
trap close_nodes EXIT
mkdir -p /opt/site
open_nodes 2
for number in 1 2; do on $number mount -t tmpfs tmpfs /opt/site; done # each node's own disk
for number in 1; do
  on $number python -m pip install --quiet --disable-pip-version-check --no-index --find-links wheels --target /opt/site --requirement requirements.txt
done
export PYTHONPATH=/opt/site MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=4 GLOO_SOCKET_IFNAME=data0
for rank in 0 1 2 3; do
  RANK=$rank LOCAL_RANK=$((rank % 2)) node $((rank / 2 + 1)) python train.py &
  pids="$pids $!"
done
wait_all 10 $pids
