. ./nodes.sh
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # a new store for each restart
python -m torch.distributed.run --nproc-per-node 2 --standalone --max-restarts 2 plain_ddp.py \
  --steps 26 --log-every 1 --timeout 30 --resume --atomic --checkpoint-every ${SAVE_EVERY:-100} >logs/train.log 2>&1 &
job=$!
( # work of higher priority takes the cores after every ten steps or so
  for turn in 1 2 3; do
    until [ "$(grep -c 'rank 1 INFO step .* loss' logs/train.log)" -ge $((turn * 11)) ]; do sleep 0.05; kill -0 $job || exit; done
    kill -KILL $(pgrep -f 'plain_ddp.py --steps' --parent $job | tail -n 1)
  done
) &
wait $job
