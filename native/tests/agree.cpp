// Compares the kernels of every instruction set of this CPU with those in plain C++, and each with itself: a row has the
// same bits whatever the other rows and the threads. Linked with the library's object files (make test-arm); under an
// emulator it is many times faster than the tests in Python, which cover more.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "../src/blocks.h"
#include "../src/matmul.h"

using namespace olv;

namespace {

int failures = 0, checks = 0;

void expect(bool good, const std::string& what) {
  ++checks;
  if (good) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

uint64_t state = 1;
uint32_t bits() {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return uint32_t(state >> 33);
}
float uniform(float low, float high) { return low + (high - low) * float(bits() % 65536) / 65536; }
float normal() { return uniform(-1, 1) + uniform(-1, 1) + uniform(-1, 1); }

// Memory that ends where a page begins that cannot be read: a kernel that reads beyond the end is stopped.
template <class T>
class Guarded {
 public:
  explicit Guarded(int64_t count) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = size_t(count) * sizeof(T);
    size_ = (bytes + page - 1) / page * page + page;
    start_ = static_cast<uint8_t*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start_ == MAP_FAILED || mprotect(start_ + size_ - page, page, PROT_NONE)) std::abort();
    data_ = start_ + size_ - page - bytes;
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(start_, size_); }
  T* data() const { return reinterpret_cast<T*>(data_); }

 private:
  uint8_t *start_, *data_;
  size_t size_;
};

std::vector<float> normals(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal();
  return x;
}

const char* const kNames[OLV_TYPES] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",   "Q5_1",   "Q8_0",  "Q2_K",
                                       "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "GROUPED",
                                       "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0",
                                       "TQ2_0"};

// Random blocks: any bytes for codes, sensible float16 scales where the type has them.
struct Weight {
  Guarded<uint8_t> data, scales;
  olv_weight w{};

  Weight(int type, int64_t n, int64_t k, int64_t group)
      : data(n * k / kTypes[type].block * kTypes[type].bytes), scales(group ? n * k / group * 4 : 0) {
    const int64_t blocks = n * k / kTypes[type].block, size = kTypes[type].bytes;
    for (int64_t i = 0; i < blocks * size; ++i) data.data()[i] = uint8_t(bits());
    const auto half = [&](int64_t at) {
      const uint16_t x = uint16_t(0x1c00 + bits() % 0x1000);  // 0.004 to 0.06
      memcpy(data.data() + at, &x, 2);
    };
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t at = b * size;
      switch (type) {
        case OLV_F32: {
          const float x = normal();
          memcpy(data.data() + at, &x, 4);
          break;
        }
        case OLV_BF16: {
          const uint16_t x = f32_to_bf16(normal());
          memcpy(data.data() + at, &x, 2);
          break;
        }
        case OLV_F16: half(at); data.data()[at + 1] ^= uint8_t(bits() & 0x80); break;
        case OLV_Q4_1: case OLV_Q5_1: case OLV_Q4_K: case OLV_Q5_K: half(at); half(at + 2); break;
        case OLV_Q2_K: half(at + 80); half(at + 82); break;
        case OLV_Q3_K: half(at + 108); break;
        case OLV_Q6_K: half(at + 208); break;
        case OLV_MXFP4: data.data()[at] = b % 7 == 3 ? uint8_t(bits() % 3) : uint8_t(120 + bits() % 8); break;
        case OLV_NVFP4: for (int i = 0; i < 4; ++i) data.data()[at + i] &= 63; break;
        case OLV_TQ1_0: half(at + 52); break;
        case OLV_TQ2_0: half(at + 64); break;
        case OLV_IQ1_M:  // 0.07 in the upper bits of four words
          for (int i = 0; i < 4; ++i) {
            uint8_t& byte = data.data()[at + 49 + 2 * i];
            byte = uint8_t((byte & 15) | (0x2c40 >> 4 * i & 15) << 4);
          }
          break;
        case OLV_GROUPED: break;
        default: half(at);
      }
    }
    for (int64_t i = 0; group && i < n * k / group; ++i) {
      const float x = uniform(0.001f, 0.02f);
      memcpy(scales.data() + 4 * i, &x, 4);
    }
    w.type = type;
    w.group = decltype(w.group)(group);
    w.data = data.data();
    w.scales = scales.data();
    w.n = n;
    w.k = k;
  }
};

std::vector<float> linear(const Weight& w, const float* x, int64_t rows, bool generated, int threads) {
  Pool pool(threads);
  Matmul matmul(pool, kernels());
  std::vector<float> y(size_t(rows * w.w.n), NAN);
  const Product product{&w.w, y.data(), w.w.n};
  matmul.multiply({&product, 1, x, generated ? 0 : rows, generated ? rows : 0});
  return y;
}

// The largest difference, as a share of the largest magnitude, or of `size` if that is larger.
double difference(const std::vector<float>& a, const std::vector<float>& b, double size = 1e-30) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) < 1e30)) return INFINITY;
    most = std::fmax(most, std::fabs(a[i] - b[i]));
    size = std::fmax(size, std::fabs(b[i]));
  }
  return most / size;
}

// The largest difference of products of rounded operands. Of each sum, it is a share of the norm of what it adds up, which
// is as large where that cancels: sums of few outputs may all be small.
double rounding(const std::vector<float>& a, const std::vector<float>& b, const Weight& w, const float* x) {
  const int64_t n = w.w.n, k = w.w.k;
  use_isa("plain");
  double most = 0;
  std::vector<float> weights(static_cast<size_t>(k));
  for (int64_t column = 0; column < n; ++column) {
    kernels().dequantize(w.w, column, weights.data());
    for (size_t i = size_t(column); i < a.size(); i += size_t(n)) {
      const float* row = x + int64_t(i) / n * k;
      double squares = 1e-60;
      for (int64_t j = 0; j < k; ++j) squares += std::pow(double(row[j]) * weights[size_t(j)], 2);
      const double off = std::fabs(double(a[i]) - b[i]);
      if (!(off < 1e30)) return INFINITY;
      most = std::fmax(most, off / std::sqrt(squares));
    }
  }
  return most;
}

void compare_linear(const std::string& isa, int type, int64_t n, int64_t k, int64_t group = 0) {
  const Weight w(type, n, k, group);
  const std::string name = isa + " " + kNames[type] + " " + std::to_string(n) + "x" + std::to_string(k);
  std::vector<float> expected(static_cast<size_t>(k)), found(static_cast<size_t>(k));
  for (const int64_t row : {int64_t(0), n - 1}) {
    use_isa("plain");
    kernels().dequantize(w.w, row, expected.data());
    use_isa(isa.c_str());
    kernels().dequantize(w.w, row, found.data());
    expect(difference(found, expected) < 1e-6, name + " dequantize");
  }
  for (const bool generated : {true, false})
    for (const int64_t rows : {1, 2, 3, 4, 9, 21}) {
      const Guarded<float> x(rows * k);
      for (int64_t i = 0; i < rows * k; ++i) x.data()[i] = normal();
      use_isa("plain");
      const std::vector<float> right = linear(w, x.data(), rows, generated, 1);
      use_isa(isa.c_str());
      const std::vector<float> y = linear(w, x.data(), rows, generated, 2);
      const bool bf16 = !generated && (isa == "amx" || isa == "i8mm");
      const bool in_int8 = !generated && has_super_blocks(w.w) && kernels().takes_codes && kernels().takes_codes(w.w);
      // Those of avx2 have other groups.
      const bool same_bits = in_int8 && (kernels().quantize_prompt == kernels().quantize || isa == "dotprod");
      const std::vector<float> same = same_bits ? linear(w, x.data(), rows, true, 1) : y;
      expect(!memcmp(y.data(), same.data(), y.size() * 4), name + " prompt rows have the bits of generated ones");
      const double off = in_int8 || bf16 ? rounding(y, right, w, x.data()) : difference(y, right);
      use_isa(isa.c_str());
      // Whether x · 127 / largest is rounded once or twice may change a code by one.
      const double bound = in_int8 ? 0.06 : bf16 ? 2e-2 : generated && is_quantized(type) ? 2e-3 : 1e-5;
      expect(off < bound, name + (generated ? " generated " : " prompt ") + std::to_string(rows) + " rows: " +
                                             std::to_string(off));
      for (int64_t r = 0; r < rows; r += 3) {
        const std::vector<float> alone = linear(w, x.data() + r * k, 1, generated, 3);
        expect(!memcmp(alone.data(), y.data() + r * n, size_t(n) * 4), name + " bits of a row");
      }
    }
}

// A gate and the product after it, in two calls as the layers of a model make them: what the first packs for the second,
// and weight rows that a thread keeps for several blocks of rows, change no bit.
std::vector<float> mlp(const Weight& gate, const Weight& up, const Weight& down, const float* x, int64_t rows, int threads,
                       bool passing) {
  Pool pool(threads);
  Matmul matmul(pool, kernels());
  const int64_t hidden = gate.w.n;
  std::vector<float> memory(size_t(3 * rows * hidden), NAN), y(size_t(rows * down.w.n), NAN);
  float* gated = memory.data() + 2 * rows * hidden;
  const Product first[] = {{&gate.w, memory.data(), hidden}, {&up.w, memory.data() + rows * hidden, hidden}};
  const float limit = is_quantized(gate.w.type) ? INFINITY : 2;  // none with int8, whose bound is a share of the largest result
  matmul.multiply({first, 2, x, rows, 0, gated, OLV_SILU, nullptr, -limit, limit, &down.w, passing});
  const Product second{&down.w, y.data(), down.w.n};
  matmul.multiply({&second, 1, gated, rows, 0});
  return y;
}

void compare_mlp(const std::string& isa, int type, int down_type, int64_t k, int64_t hidden) {
  const uint64_t before = state;
  const Weight gate(type, hidden, k, 0), up(type, hidden, k, 0), down(down_type, 70, hidden, 0);
  const std::string name = isa + " MLP " + kNames[type] + " and " + kNames[down_type];
  const int64_t rows = 301;
  std::vector<float> x = normals(rows * k);
  for (float& v : x) v /= 16;
  use_isa("plain");
  const std::vector<float> right = mlp(gate, up, down, x.data(), rows, 1, false);
  use_isa(isa.c_str());
  const std::vector<float> y = mlp(gate, up, down, x.data(), rows, 3, true);
  const double off = difference(y, right);
  expect(off < 0.05, name + ": " + std::to_string(off));
  for (const int64_t r : {int64_t(0), int64_t(127), int64_t(128), rows - 1}) {
    const std::vector<float> alone = mlp(gate, up, down, x.data() + r * k, 1, 2, false);
    expect(!memcmp(alone.data(), y.data() + r * 70, 70 * 4), name + " bits of a row");
  }
  state = before;  // other checks get the numbers that they had without this one
}

// Codes and scales have one right value.
void compare_expanded(const std::string& isa, int type) {
  const int64_t n = 64, k = 2 * kSuperBlock;
  const Weight w(type, n, k, 0);
  if (type == OLV_NVFP4)  // every scale, with those that are subnormal, too large or not a number
    for (int64_t i = 0; i < n * k / 16; ++i) w.data.data()[i / 4 * kTypes[type].bytes + i % 4] = uint8_t(i);
  std::vector<int8_t> expected(size_t(n * k)), found(size_t(n * k));
  std::vector<float> scales(size_t(n * k / 16)), found_scales(size_t(n * k / 16));
  use_isa("plain");
  kernels().expand(w.w, 0, n, expected.data(), scales.data());
  use_isa(isa.c_str());
  kernels().expand(w.w, 0, n, found.data(), found_scales.data());
  expect(found == expected, isa + " " + kNames[type] + " expanded codes");
  expect(!memcmp(found_scales.data(), scales.data(), scales.size() * 4), isa + " " + kNames[type] + " expanded scales");
}

// Prompt rows with a single 1 give the weights, rounded to bfloat16 at most: every element by itself.
void compare_elements(const std::string& isa, int type, int64_t n, int64_t k, int64_t group = 0) {
  const Weight w(type, n, k, group);
  use_isa(isa.c_str());
  if (kernels().takes_codes && kernels().takes_codes(w.w)) return;
  std::vector<float> x(size_t(k * k)), row(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) x[size_t(i * k + i)] = 1;
  const std::vector<float> y = linear(w, x.data(), k, false, 2);
  use_isa("plain");
  bool good = true;
  for (int64_t r = 0; r < n; ++r) {
    kernels().dequantize(w.w, r, row.data());
    for (int64_t i = 0; i < k; ++i) {
      const float value = row[size_t(i)];
      good &= std::fabs(y[size_t(i * n + r)] - value) <= std::fabs(value) / 256 + 1e-36;  // bfmmla has no subnormals
    }
  }
  expect(good, isa + " " + kNames[type] + " elements");
}

struct Attention {
  std::vector<float> prefill, decode, max, sum;
};

constexpr int kHeads = 3;

// One KV head with kHeads query heads: the last `rows` of so many keys as prompt rows, the last one as a generated row, too,
// over the last KV split.
Attention attention(int type, int d, int keys, int rows, int window, const std::vector<float>& q, const std::vector<float>& k,
                    const std::vector<float>& v) {
  constexpr int heads = kHeads;
  const int64_t count = (keys + kPage - 1) / kPage;
  const int64_t page_bytes = kPage * d * (type == OLV_F32 ? 4 : type == OLV_BF16 ? 2 : 1) + (type == OLV_Q8_0 ? kPage * d / 32 * 4 : 0);
  Buffer key_memory, value_memory, scratch, pages;
  CacheView cache{type, key_memory.array<uint8_t>(count * page_bytes), value_memory.array<uint8_t>(count * page_bytes), 1, d, page_bytes};
  memset(cache.keys, 0, size_t(count * page_bytes));
  memset(cache.values, 0, size_t(count * page_bytes));
  std::vector<int32_t> table;
  for (int64_t i = 0; i < count; ++i) table.push_back(int32_t((i + 2) % count));
  for (int64_t at = 0; at < keys; at += kPage)
    kernels().store_kv(cache, table[at / kPage], 0, 0, std::min<int64_t>(kPage, keys - at), k.data() + at * d, v.data() + at * d, d);
  DequantizedPages dequantized{pages.array<uint16_t>(2 * kDequantizedPages * kPage * d), {}};
  for (auto& kind : dequantized.page)
    for (int64_t& page : kind) page = -1;
  std::vector<int32_t> position;
  for (int i = 0; i < rows; ++i) position.push_back(keys - rows + i);
  Attention a{std::vector<float>(size_t(rows * heads * d)), std::vector<float>(size_t(heads * d)), std::vector<float>(heads),
              std::vector<float>(heads)};
  AttentionTask task{&cache, &dequantized, table.data(), q.data(), a.prefill.data(), int64_t(heads) * d, d, position.data(),
                     position.data(), rows, 0, heads, 0.125f, window};
  kernels().prefill_attention(task, scratch.reserve(size_t(kScratch)));
  task.rows = 1;
  task.q += (rows - 1) * heads * d;
  task.position = task.last = position.data() + rows - 1;
  const int64_t split = (keys - 1) / kSplit * kSplit;
  kernels().decode_attention(task, window ? std::max<int64_t>(split, keys - window) : split, keys,
                             {a.decode.data(), a.max.data(), a.sum.data()});
  return a;
}

void compare_ops(const std::string& isa) {
  const auto both = [&](const std::string& name, int64_t size, double bound, auto&& run, double magnitude = 1e-30) {
    std::vector<float> expected(static_cast<size_t>(size)), found(static_cast<size_t>(size));
    use_isa("plain");
    run(expected.data());
    use_isa(isa.c_str());
    run(found.data());
    const double off = difference(found, expected, magnitude);
    expect(off <= bound, isa + " " + name + ": " + std::to_string(off));
  };
  for (const int width : {1, 16, 37, 256}) {
    const std::vector<float> x = normals(2 * width), w = normals(2 * width);
    both("rms_norm", 2 * width, 1e-6, [&](float* y) { kernels().rms_norm(x.data(), w.data(), y, 2 * width, width, 1e-6f); });
    double magnitude = 0;  // of a gate that is open; what it leaves of a negative number is a small difference
    for (int i = 0; i < width; ++i) magnitude = std::fmax(magnitude, std::fabs(x[size_t(i)] * w[size_t(i)]) / 10);
    for (const int activation : {int(OLV_SILU), OLV_SILU + 1})
      both("gate", width, 1e-6, [&](float* y) { kernels().gate(x.data(), w.data(), y, width, activation); }, magnitude);
    both("softcap", width, 2e-6, [&](float* y) { kernels().softcap(x.data(), y, width, 3); });
    both("add", width, 0, [&](float* y) { kernels().add(x.data(), w.data(), y, width); });
    for (const int interleaved : {0, 1})
      both("rope", 2 * width, 1e-6, [&](float* y) {
        kernels().rope(x.data(), w.data(), w.data() + width, y, 2 * width, 2 * width, width / 2, interleaved);
      });
  }
  for (const int type : {int(OLV_BF16), int(OLV_F32), int(OLV_Q8_0)})
    for (const int d : {64, 96})
      for (const auto& [keys, rows, window] : {std::tuple(70, 9, 0), {70, 9, 20}, {600, 50, 0}, {600, 50, 300}}) {
        std::vector<float> q = normals(rows * kHeads * d), k = normals(keys * d), v = normals(keys * d);
        for (int i = 0; i < keys * d; ++i) k[size_t(i)] *= 1 + 2 * float(i / d) / float(keys);  // later scores are larger
        use_isa("plain");
        const Attention expected = attention(type, d, keys, rows, window, q, k, v);
        use_isa(isa.c_str());
        const Attention found = attention(type, d, keys, rows, window, q, k, v);
        const std::string name = isa + " attention " + kNames[type] + " " + std::to_string(d) + " of " + std::to_string(keys);
        const double bound = isa == "amx" && type != OLV_F32 ? 1e-2 : 1e-5;
        expect(difference(found.prefill, expected.prefill) < bound, name + " prefill");
        expect(difference(found.decode, expected.decode) < 1e-5, name + " decode");
        expect(difference(found.max, expected.max) < 1e-5 && difference(found.sum, expected.sum) < 1e-5, name + " decode's sums");
        for (float& x : q) x *= 1e9f;  // the largest score has all
        const Attention sharp = attention(type, d, keys, rows, window, q, k, v);
        expect(std::all_of(sharp.prefill.begin(), sharp.prefill.end(), [](float x) { return std::isfinite(x); }), name + " sharp");
      }
}

}  // namespace

// The instruction sets to compare. A number is the seed of what follows it.
int main(int count, char** isas) {
  for (int i = 1; i < count; ++i) {
    if (std::isdigit(isas[i][0])) {
      state = std::strtoull(isas[i], nullptr, 10);
      continue;
    }
    if (!use_isa(isas[i])) {
      std::printf("this CPU has no %s\n", isas[i]);
      return 2;
    }
    const int before = checks;
    for (int type = 0; type < OLV_TYPES; ++type) {
      if (type == OLV_GROUPED) {
        for (const int64_t group : {6, 16, 48, 64, 128}) compare_linear(isas[i], type, 19, group * 7, group);
        compare_linear(isas[i], type, 5, 512, 64);
      } else if (is_quantized(type)) {
        compare_linear(isas[i], type, 37, kTypes[type].block == 32 ? 9 * 32 : 512);
        compare_linear(isas[i], type, 3, kTypes[type].block);
      } else {
        for (const auto& [n, k] : {std::pair(1, 1), {3, 7}, {33, 100}, {50, 257}, {17, 32}}) compare_linear(isas[i], type, n, k);
      }
    }
    compare_ops(isas[i]);
    for (int type = 0; type < OLV_TYPES; ++type) {
      if (is_expanded(type)) compare_expanded(isas[i], type);
      const int64_t group = type == OLV_GROUPED ? 32 : 0;
      compare_elements(isas[i], type, 17, kTypes[type].block > 64 ? kSuperBlock : kSuperBlock + 64, group);
    }
    for (const int type : {int(OLV_BF16), int(OLV_Q8_0), int(OLV_Q4_K), int(OLV_TQ2_0)})
      for (const int down : {int(OLV_BF16), int(OLV_Q8_0)}) compare_mlp(isas[i], type, down, 512, 288);
    compare_mlp(isas[i], OLV_BF16, OLV_F32, 70, 83);
    compare_linear(isas[i], OLV_NVFP4, 37, kSuperBlock + 64);  // of other types, a row is whole super-blocks
    std::printf("%s: %d checks\n", isas[i], checks - before);
  }
  return failures ? 1 : 0;
}
