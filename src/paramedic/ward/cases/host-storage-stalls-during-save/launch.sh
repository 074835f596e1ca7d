. ./nodes.sh
truncate -s 32M share.img
mkfs.ext4 -q share.img
mkdir -p share
mount -o loop share.img share
(
  wait_for 'step 6 loss' logs/train.log
  fsfreeze --freeze share # the file server fails over to its twin
  sleep 25
  fsfreeze --unfreeze share
) &
server=$!
python -m torch.distributed.run --nproc-per-node 2 --standalone plain_ddp.py \
  --steps 12 --pause 0.4 --timeout ${GROUP_TIMEOUT:-8} --checkpoint-every 8 --checkpoints share >logs/train.log 2>&1
code=$?
wait $server
exit $code
