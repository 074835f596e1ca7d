#!/bin/bash
WORKERS=(10.40.2.30 10.40.2.31 10.40.2.32 10.40.2.33 10.40.2.34 10.40.2.35 10.40.2.36 10.40.2.37)
for i in "${!WORKERS[@]}"; do
  ssh ${WORKERS[$i]} "cd /proj/birds && TF_CONFIG=$(./tfconf.py $i) python3 fit_mwms.py --data /local/birds-v3" > worker$i.log 2>&1 &
done
wait -n; for w in "${WORKERS[@]}"; do ssh $w pkill -u birds python3; done
