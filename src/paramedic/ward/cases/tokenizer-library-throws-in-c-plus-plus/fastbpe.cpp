// Byte-pair merges, one pass.
#include <algorithm>
#include <cstdint>
#include <vector>

static std::vector<int64_t> table() {
  std::vector<int64_t> t(256);
  for (int i = 0; i < 256; ++i) t[i] = (i * 31) % 256;
  return t;
}
static const std::vector<int64_t> merges = table();

extern "C" void encode(const uint8_t *text, int64_t length, int64_t *out) {
  std::vector<size_t> ids(text, text + length);
  for (size_t i = 0; i < ids.size(); ++i) out[i] = merges.at(ids[i] + 1);
}
