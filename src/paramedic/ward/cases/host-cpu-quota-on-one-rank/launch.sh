. ./nodes.sh
. ./limits.sh
trap no_limits EXIT
export MASTER_ADDR=127.0.0.1 MASTER_PORT=${1:-29517} WORLD_SIZE=4
quotas=(100 100 100 2) # hundredths of a core, from the last plan of the autoscaler
for rank in 0 1 2 3; do
  RANK=$rank LOCAL_RANK=$rank python timed_ddp.py --steps 14 >logs/rank-$rank.log 2>&1 &
  pids="$pids $!"
done
wait_for 'step 1 ' logs/rank-0.log
rank=0
for pid in $pids; do
  limit cpu train-rank-$rank ${quotas[$rank]}
  echo $pid >$group/cgroup.procs
  rank=$((rank + 1))
done
wait_all 5 $pids
