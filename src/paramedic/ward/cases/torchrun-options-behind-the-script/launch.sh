set -e
export OMP_NUM_THREADS=1
torchrun seg_train.py --data out --nproc_per_node 3 --standalone --lr 0.02
