. ./limits.sh
trap no_limits EXIT
limit pids train-pids 40 # the container's process limit
echo $BASHPID >$group/cgroup.procs
python -m torch.distributed.run --nproc-per-node 2 --standalone loader_ddp.py --workers 24 --steps 12
