// Hann window applied in place to rows of floats.
#include <cmath>

extern "C" void hann(float *rows, long count, long width) {
  for (long r = 0; r < count; ++r)
    for (long i = 0; i < width; ++i) rows[r * width + i] *= 0.5f - 0.5f * std::cos(6.2831853f * i / (width - 1));
}
