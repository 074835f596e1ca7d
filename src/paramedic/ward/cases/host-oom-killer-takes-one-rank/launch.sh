. ./limits.sh
trap no_limits EXIT
limit memory train-job $((1100 << 20)) # the container's memory
dmesg --follow-new 2>/dev/null | grep --line-buffered -E 'python.* invoked oom-killer|train-job|oom_reaper|usage .*limit|Killed process .*python' >logs/kernel.log &
echo $BASHPID >$group/cgroup.procs
python -m torch.distributed.run --nproc-per-node 2 --standalone loader_ddp.py --keep 40 --batch 32 --steps 40
code=$?
sleep 1
exit $code
