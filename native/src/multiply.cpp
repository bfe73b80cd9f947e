#include "multiply.h"

#include <cstdlib>
#include <new>

#include "blocks.h"

namespace olv {

void* Buffer::need(size_t bytes) {
  if (bytes > size_) {
    std::free(data_);
    size_ = (bytes + 63) / 64 * 64;
    data_ = std::aligned_alloc(64, size_);
    if (!data_) {
      size_ = 0;
      throw std::bad_alloc();
    }
  }
  return data_;
}

Buffer::~Buffer() { std::free(data_); }

Multiplier::Multiplier(Pool& pool, const Kernels& kernels)
    : pool_(pool), kernels_(kernels), scratch_(size_t(pool.threads())) {}

void Multiplier::prepare(Prepared& p, const float* x, int64_t prompt, int64_t generated, int64_t k, bool codes) {
  const int64_t strips = strips_of(k), blocks = (prompt + 15) / 16;
  p.prompt = Rows{prompt, k, x};
  p.generated = Rows{generated, k, x + prompt * k};
  if (prompt) {
    const int64_t block_bytes = tiles_of(k) * kernels_.panel_bytes;
    uint8_t* panel = p.panel.of<uint8_t>(blocks * block_bytes);
    p.prompt.panel = panel;
    over_rows(blocks, 64 * k, [&](int64_t b) {
      kernels_.pack(x + 16 * b * k, std::min<int64_t>(16, prompt - 16 * b), k, panel + b * block_bytes);
    });
  }
  if (generated && codes) {
    p.generated.code = p.code.of<int8_t>(generated * strips * kStrip);
    p.generated.scale = p.scale.of<float>(generated * strips * kGroups);
    p.generated.sum = p.sum.of<float>(generated * strips * kGroups);
    over_rows(generated, 4 * k, [&](int64_t r) {
      kernels_.quantize(p.generated.values + r * k, k, p.generated.code + r * strips * kStrip,
                        p.generated.scale + r * strips * kGroups, p.generated.sum + r * strips * kGroups);
    });
  }
}

// Around eight ranges a thread: few enough to be cheap, many enough to even out a core that is late.
void Multiplier::split(const Product* products, int count, int64_t unit) {
  int64_t total = 0;
  for (int i = 0; i < count; ++i) total += products[i].weight->n;
  const int64_t size = std::max(unit, (total / (8 * pool_.threads()) + unit - 1) / unit * unit);
  ranges_.clear();
  for (int i = 0; i < count; ++i)
    for (int64_t n = 0; n < products[i].weight->n; n += size)
      ranges_.push_back({&products[i], n, std::min(products[i].weight->n, n + size)});
}

void Multiplier::multiply(const Product* products, int count, const Prepared& x) {
  if (x.prompt.count) {
    split(products, count, 32);
    pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int thread) {
      const Range& r = ranges_[size_t(chunk)];
      kernels_.gemm(*r.product->weight, r.first, r.last, x.prompt, r.product->y, r.product->stride, scratch(thread));
    });
  }
  if (x.generated.count) {
    split(products, count, 8);
    pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int) {
      const Range& r = ranges_[size_t(chunk)];
      kernels_.gemv(*r.product->weight, r.first, r.last, x.generated,
                    r.product->y + x.prompt.count * r.product->stride, r.product->stride);
    });
  }
}

}  // namespace olv
