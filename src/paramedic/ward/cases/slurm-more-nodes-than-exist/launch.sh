. ./slurm.sh
sinfo
job=$(sbatch --parsable job.sh) || exit 1
echo "submitted job $job"
follow $job
