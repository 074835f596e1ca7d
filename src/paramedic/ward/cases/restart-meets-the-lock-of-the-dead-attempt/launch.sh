. ./nodes.sh
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # a new store for each restart
torchrun --standalone --nproc-per-node 2 --max-restarts 2 elastic_train.py >logs/train.log 2>&1 &
job=$!
wait_for 'attempt 0 rank 0 step 6' logs/train.log
kill -KILL $(pgrep -f elastic_train.py --parent $(pgrep -f 'torchrun --standalone' | tail -n 1) | head -n 1)
wait $job
