#!/bin/bash
# run_until_done.sh -- restart training if it dies or goes silent for 20 min
LOG=run.log
for attempt in 1 2 3 4; do
  echo "[watch] $(date '+%F %T') attempt $attempt" >> $LOG
  MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 python train_spawn.py --resume auto >> $LOG 2>&1 &
  pid=$!
  while kill -0 $pid 2>/dev/null; do
    sleep 60
    age=$(( $(date +%s) - $(stat -c %Y $LOG) ))
    if [ $age -gt 1200 ]; then
      echo "[watch] $(date '+%F %T') no output for ${age}s, kill -9 $pid" >> $LOG
      kill -9 $pid
    fi
  done
  wait $pid; rc=$?
  echo "[watch] $(date '+%F %T') pid $pid ended rc=$rc" >> $LOG
  [ $rc -eq 0 ] && break
  sleep 30
done
