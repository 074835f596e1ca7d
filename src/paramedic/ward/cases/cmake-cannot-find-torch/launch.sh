set -euo pipefail
cmake -S ops -B build -DCMAKE_BUILD_TYPE=Release
cmake --build build
torchrun --standalone --nproc-per-node=2 train_ops.py build/libwindow.so
