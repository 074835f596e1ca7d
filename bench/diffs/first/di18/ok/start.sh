#!/bin/bash
export RUN=5098
df -h /mnt/wekafs /tmp
for h in w01 w02; do ssh $h "cd /mnt/wekafs/code/lm3b && LOGDIR=/tmp/$RUN ./node.sh $RUN" & done
wait
