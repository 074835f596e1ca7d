. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
for number in 1 2; do
  printf '127.0.0.1 localhost node-0%d\n10.20.0.%d node-0%d\n' $number $((3 - number)) $((3 - number)) >hosts-$number # as the image's installer leaves it
done
export MASTER_ADDR=10.20.0.1 MASTER_PORT=29500 WORLD_SIZE=2
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=0 node $((rank + 1)) python plain_ddp.py --timeout 12 --steps 8 &
  pids="$pids $!"
done
wait_all 15 $pids
