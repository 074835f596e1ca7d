# DeepSpeed compiles its shared-memory operator when it is first used, which takes minutes. Compile it once for the virtual
# environment and give the job a copy in a cache of its own, so that no job meets the lock of another.
set -e
cache=$(dirname "$(dirname "$(command -v python)")")/torch_extensions
mkdir -p "$cache"
exec 9> "$cache/in-use"
flock 9
if ! test -f "$cache/deepspeed_shm_comm/deepspeed_shm_comm.so"; then
    rm -f "$cache"/*/lock
    TORCH_EXTENSIONS_DIR=$cache python -c 'from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load()'
fi
mkdir -p "$TORCH_EXTENSIONS_DIR"
cp -a "$cache/deepspeed_shm_comm" "$TORCH_EXTENSIONS_DIR"
