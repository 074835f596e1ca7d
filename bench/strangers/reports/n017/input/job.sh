#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=8 --gpus-per-task=1 --cpus-per-task=12 -t 24:00:00
# batch 4 x 8 gpus = 32, lr for 32 -> 3000 steps
module load cuda/11.8
srun -o logs/t5_%t.log python run_seq2seq.py --model_name_or_path Salesforce/codet5p-770m \
   --per_device_train_batch_size 4 --num_train_epochs 1 --fp16 --output_dir /scratch/out/t5-code
