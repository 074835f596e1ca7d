#!/bin/bash
# usage: start.sh INDEX   (run on each of the four hosts with 0..3)
set -euo pipefail
INDEX=$1
export TF_CONFIG='{
  "cluster": {"worker": ["tf-0:12345", "tf-1:12345", "tf-2:12345", "tf-3:12345"]},
  "task": {"type": "worker", "index": '"$INDEX"'}
}'
exec python train.py --epochs 50
