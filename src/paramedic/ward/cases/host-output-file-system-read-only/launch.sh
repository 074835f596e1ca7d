# Shared storage, which the administrators have set read-only for a repair.
truncate -s 16M share.img
mkfs.ext4 -q share.img
mkdir -p share scratch
mount -o loop,ro share.img share
python -m torch.distributed.run --nproc-per-node 2 --standalone plain_ddp.py --steps 8 --out share/run-7
