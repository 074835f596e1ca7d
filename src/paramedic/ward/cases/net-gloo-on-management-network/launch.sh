. ./nodes.sh
trap close_nodes EXIT
open_nodes 2
for number in 1 2; do on $number tc qdisc add dev eth0 root tbf rate 10mbit burst 32k latency 400ms; done # eth0: the old 10 Mbit/s management switch
export MASTER_ADDR=node-01 MASTER_PORT=29500 WORLD_SIZE=2
export GLOO_SOCKET_IFNAME=${TRAIN_INTERFACE:-eth0}
for number in 1 2; do
  node $number sh -c 'echo "$(hostname): gloo on $GLOO_SOCKET_IFNAME"; ip -brief address show scope global'
done
RANK=0 LOCAL_RANK=0 node 1 python plain_ddp.py --timeout 60 --steps 8 --hidden 350 --pause 0.05 &
first=$!
RANK=1 LOCAL_RANK=0 node 2 python plain_ddp.py --timeout 60 --steps 8 --hidden 350 --pause 0.05 &
second=$!
wait_all 20 $first $second
code=$?
for number in 1 2; do node $number sh -c 'echo "$(hostname): traffic"; ip -s -brief link show; ip -s link show eth0; ip -s link show data0'; done
exit $code
