#!/bin/bash
# usage: start.sh ROLE INDEX   (chief 0 | worker 0..3 | ps 0..1)
set -euo pipefail
ROLE=$1
INDEX=$2
export TF_CONFIG='{
  "cluster": {
    "chief": ["rank-chief:2222"],
    "worker": ["rank-w0:2222", "rank-w1:2222", "rank-w2:2222", "rank-w3:2222"],
    "ps": ["rank-ps0:2222", "rank-ps1:2222"]
  },
  "task": {"type": "'"$ROLE"'", "index": '"$INDEX"'}
}'
exec python train.py
