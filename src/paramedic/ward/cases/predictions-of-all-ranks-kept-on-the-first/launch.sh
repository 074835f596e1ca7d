#!/bin/bash
ulimit -v 5000000
exec torchrun --standalone --nproc_per_node 4 infer.py --batches 44 --keep
