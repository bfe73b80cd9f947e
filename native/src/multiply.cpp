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

void Multiplier::prepare(const Product* products, int count, const float* x, int64_t prompt, int64_t generated) {
  const int64_t k = products[0].weight->k, strips = strips_of(k);
  bool with_strips = false, without = false;
  for (int i = 0; i < count; ++i) (has_strips(*products[i].weight) ? with_strips : without) = true;
  prompt_ = Rows{prompt, k, x};
  generated_ = Rows{generated, k, x + prompt * k};
  if (prompt && without) prompt_.panel = pack(x, prompt, k, false, panel_);
  if (prompt && with_strips) prompt_.strip_panel = pack(x, prompt, k, true, strip_panel_);
  if (generated && with_strips) {
    generated_.code = code_.of<int8_t>(generated * strips * kStrip);
    generated_.scale = scale_.of<float>(generated * strips * kGroups);
    generated_.sum = sum_.of<float>(generated * strips * kGroups);
    over_rows(generated, 4 * k, [&](int64_t r) {
      kernels_.quantize(generated_.values + r * k, k, generated_.code + r * strips * kStrip,
                        generated_.scale + r * strips * kGroups, generated_.sum + r * strips * kGroups);
    });
  }
}

void* Multiplier::pack(const float* x, int64_t rows, int64_t k, bool strips, Buffer& memory) {
  const int64_t blocks = (rows + 15) / 16, block_bytes = tiles_of(k) * kernels_.panel_bytes;
  uint8_t* panel = memory.of<uint8_t>(blocks * block_bytes);
  over_rows(blocks, 64 * k, [&](int64_t b) {
    kernels_.pack(x + 16 * b * k, std::min<int64_t>(16, rows - 16 * b), k, strips, panel + b * block_bytes);
  });
  return panel;
}

// Around eight ranges a thread: few enough to be cheap, many enough to even out a core that is late. Four if eight would be
// of less than `large` rows.
void Multiplier::split(const Product* products, int count, int64_t unit, int64_t large) {
  int64_t total = 0;
  for (int i = 0; i < count; ++i) total += products[i].weight->n;
  const int64_t eighth = total / (8 * pool_.threads()), quarter = total / (4 * pool_.threads());
  const int64_t size = std::max(unit, (std::max(eighth, std::min(quarter, large)) + unit - 1) / unit * unit);
  ranges_.clear();
  for (int i = 0; i < count; ++i)
    for (int64_t n = 0; n < products[i].weight->n; n += size)
      ranges_.push_back({&products[i], n, std::min(products[i].weight->n, n + size)});
}

void Multiplier::multiply(const Product* products, int count, const float* x, int64_t prompt, int64_t generated) {
  prepare(products, count, x, prompt, generated);
  if (prompt) {
    split(products, count, 32, 128);  // a visit of the panels, from beyond the core's caches, is worth 128 rows
    pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int thread) {
      const Range& r = ranges_[size_t(chunk)];
      kernels_.gemm(*r.product->weight, r.first, r.last, prompt_, r.product->y, r.product->stride, scratch(thread));
    });
  }
  if (generated) {
    split(products, count, 8, 0);
    pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int) {
      const Range& r = ranges_[size_t(chunk)];
      kernels_.gemv(*r.product->weight, r.first, r.last, generated_,
                    r.product->y + prompt * r.product->stride, r.product->stride);
    });
  }
}

}  // namespace olv
