# The site's reclaimer ends what uses a reserved host, by process id, once it has been seen working.
(
    until [ -s out/rank1.pid ] && [ -e checkpoints/step-20-rank2.pt ]; do sleep 0.05; done
    kill -9 "$(cat out/rank1.pid)"
) &
python -m torch.distributed.run --standalone --nproc-per-node 3 --max-restarts 1 train.py
