. ./nodes.sh
. ./limits.sh
trap no_limits EXIT
export MASTER_ADDR=127.0.0.1 MASTER_PORT=${1:-29517} WORLD_SIZE=2
quota=4 # hundredths of a core for the container, from the last plan of the autoscaler
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=$rank python timed_ddp.py --steps 12 --work 8 >logs/rank-$rank.log 2>&1 &
  pids="$pids $!"
done
wait_for 'step 1 ' logs/rank-0.log
limit cpu train-all $quota
for pid in $pids; do echo $pid >$group/cgroup.procs; done
wait_all 5 $pids
