. ./nodes.sh
mkdir -p scratch/run-7 keep/run-7
python -m torch.distributed.run --nproc-per-node 2 --standalone plain_ddp.py \
  --steps 20 --checkpoint-every 6 --checkpoints scratch/run-7 >logs/train.log 2>&1 &
job=$!
(
  wait_for 'step 6 saved' logs/train.log
  rm -r scratch/run-7 # the nightly clean-up of scratch
) &
wait $job
