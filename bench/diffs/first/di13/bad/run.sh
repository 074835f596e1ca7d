set -x
export NCCL_IB_TIMEOUT=22
export WANDB_RUN_ID=f81kz0
deepspeed --hostfile hostfile --master_port 6007 train.py \
  --deepspeed --deepspeed_config ds.json \
  --resume /nfs/ckpt/code7b --tag latest --steps 3000
