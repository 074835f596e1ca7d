#include <cuda_runtime.h>

__global__ void normalise_rows_kernel(float *rows, int width) {
  float *row = rows + blockIdx.x * width;
  float sum = 0;
  for (int i = 0; i < width; ++i) sum += row[i] * row[i];
  for (int i = 0; i < width; ++i) row[i] *= rsqrtf(sum);
}
