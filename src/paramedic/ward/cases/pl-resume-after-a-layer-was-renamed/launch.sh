set -e
run="torchrun --nproc-per-node 2 --master-port $1 tabular.py"
git_rev=a1 $run --epochs 2 --name backbone
echo "--- second allocation ---"
$run --epochs 4 --name encoder --ckpt checkpoints/last.ckpt
