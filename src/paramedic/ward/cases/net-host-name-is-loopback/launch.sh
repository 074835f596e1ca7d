. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
for number in 1 2; do
  sed -i "s/localhost/localhost node-0$number/" hosts-$number # as the installer of the image leaves it
done
export MASTER_ADDR=10.20.0.1 MASTER_PORT=29500 WORLD_SIZE=2
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=0 node $((rank + 1)) python plain_ddp.py --timeout 12 --steps 8 &
  pids="$pids $!"
done
wait_all 15 $pids
