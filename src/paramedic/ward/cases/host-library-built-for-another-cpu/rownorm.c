#include <math.h>

void normalise_rows(float *restrict rows, int count, int width) {
  for (int row = 0; row < count; ++row, rows += width) {
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += rows[i] * rows[i];
    float scale = 1 / sqrtf(sum), shift = 1e-6f;
    for (int i = 0; i < width; ++i) rows[i] = rows[i] * scale + shift;
  }
}
