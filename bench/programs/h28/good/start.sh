#!/bin/bash
# usage: start.sh INDEX   (on scene-0 .. scene-2 with 0, 1, 2)
set -euo pipefail
INDEX=$1
export TF_CONFIG='{
  "cluster": {"worker": ["scene-0:20000", "scene-1:20000", "scene-2:20000"]},
  "task": {"type": "worker", "index": '"$INDEX"'}
}'
exec python train.py
