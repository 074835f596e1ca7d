#!/bin/bash
# usage: ./launch.sh   (runs from the login host)
HOSTS=$(cat hosts.txt)
N=$(wc -w < <(sed 's/#//' hosts.txt))
i=0
for h in $HOSTS; do
  case $h in \#*) continue;; esac
  ssh $h "cd /nfs/code/lm && NUM=$N ID=$i COORD=tc-0.lab:8476 ./run_one.sh" > logs/$h.log 2>&1 &
  i=$((i+1))
done
wait
