# The image has what image.txt lists, and the virtual environment.
mkdir image
for tool in $(cat image.txt); do ln -s "$(command -v $tool)" image/; done
export PATH=/opt/venv/bin:$PWD/image
exec python -m torch.distributed.run --nproc-per-node 2 --standalone train.py
