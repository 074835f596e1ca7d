docker run -d --gpus all -v /data:/data -v $PWD:/app vid/train:0.9 \
  torchrun --standalone --nproc_per_node=4 train.py --clip-len 64 --size 256 --batch 8 --workers 12
