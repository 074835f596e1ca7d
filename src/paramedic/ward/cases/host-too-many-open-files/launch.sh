ulimit -n 128 # limits.conf of the new image
exec python -m torch.distributed.run --nproc-per-node 2 --standalone loader_ddp.py --workers 1 --steps 12
