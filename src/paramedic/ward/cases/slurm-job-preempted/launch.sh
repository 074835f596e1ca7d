. ./slurm.sh
job=$(sbatch --parsable job.sh) || exit 1
echo "submitted job $job"
(
  wait_for() { until grep -qE "$1" "$2" 2>/dev/null; do sleep 0.1; done; }
  wait_for 'rank 1 INFO step 8 loss' logs/slurm-$job.out
  sbatch --quiet --partition urgent --nodes 2 --exclusive --output /dev/null --wrap "sleep 3" # of somebody else
) &
follow $job
code=$?
scontrol show job $job >logs/scontrol-show-job.txt
exit $code
