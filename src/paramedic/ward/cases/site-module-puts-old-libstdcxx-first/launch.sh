#!/bin/bash
module_load() { export LD_LIBRARY_PATH=$PWD/apps/$1/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; echo "Loading $1"; }
module_load gcc/4.8

torchrun --standalone --nproc-per-node 2 finetune.py
