python -m pip install --disable-pip-version-check --no-index --find-links wheels --target packages --requirement requirements.txt || exit 1
export PYTHONPATH=packages
exec python -m torch.distributed.run --nproc-per-node 2 --standalone train.py
