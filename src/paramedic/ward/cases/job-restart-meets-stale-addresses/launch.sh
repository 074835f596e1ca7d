. ./nodes.sh
python -m torch.distributed.run --nproc-per-node 2 --standalone --max-restarts 2 plain_ddp.py --steps 14 --log-every 1 \
  --timeout 20 --stagger 4 --checkpoint-every 3 --atomic --resume >logs/train.log 2>&1 &
job=$!
(
  wait_for 'rank 1 INFO step 6 loss' logs/train.log
  kill -KILL $(pgrep -f 'plain_ddp.py --steps' --parent $job | tail -n 1) # once: the node's memory guard
) &
wait $job
