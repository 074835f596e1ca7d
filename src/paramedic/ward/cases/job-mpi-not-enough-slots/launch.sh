export MASTER_ADDR=127.0.0.1 MASTER_PORT=${1:-29500}
mpirun --allow-run-as-root --hostfile hostfile --tag-output -np 4 bash -c \
  'RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE exec python plain_ddp.py --timeout 60 --steps 6'
