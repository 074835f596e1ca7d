set -o pipefail
# What the tasks of a Slurm job step get to see: srun starts them with these variables.
export SLURM_NTASKS=4 SLURM_JOB_ID=4711 SLURM_STEP_NODELIST=node-01
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$1
pids=()
for task in 0 1 2 3; do
    export SLURM_PROCID=$task SLURM_LOCALID=$task
    python train.py 2>&1 | sed -u "s/^/$task: /" &
    pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=1; done
exit $code
