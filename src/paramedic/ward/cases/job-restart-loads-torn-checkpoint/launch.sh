. ./nodes.sh
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # a new store for each restart
truncate -s 32M share.img
mkfs.ext4 -q share.img
mkdir -p share
mount -o loop share.img share
python -m torch.distributed.run --nproc-per-node 2 --standalone --max-restarts 2 plain_ddp.py --steps 14 --pause 0.4 \
  --log-every 1 --timeout 30 --checkpoints share --checkpoint-every 5 --resume >logs/train.log 2>&1 &
job=$!
(
  wait_for 'rank 0 INFO step 8 loss' logs/train.log
  fsfreeze --freeze share # the file server fails over to its twin
  wait_for 'step 10 saving' logs/train.log
  sleep 2
  kill -KILL $(pgrep -f 'plain_ddp.py --steps' --parent $job | head -n 1) # the node's watchdog ends the task that hangs
  sleep 1
  fsfreeze --unfreeze share
) &
server=$!
wait $job
code=$?
wait $server
exit $code
