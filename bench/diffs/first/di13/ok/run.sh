set -x
export NCCL_IB_TIMEOUT=22
export WANDB_RUN_ID=f81kyq
deepspeed --hostfile hostfile --master_port 6003 train.py \
  --deepspeed --deepspeed_config ds.json \
  --resume /nfs/ckpt/code7b --tag latest --steps 2000
