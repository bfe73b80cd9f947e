// Linear ops over a pool: activations prepared once, then any number of products in one parallel loop.
#pragma once
#include <algorithm>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace olv {

// Memory that grows when it must and is kept. 64-byte aligned.
class Buffer {
 public:
  void* need(size_t bytes);
  template <class T>
  T* of(int64_t count) { return static_cast<T*>(need(size_t(count) * sizeof(T))); }
  ~Buffer();
  Buffer() = default;
  Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
  Buffer(const Buffer&) = delete;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

struct Product {
  const olv_weight* weight;
  float* y;  // of the first row
  int64_t stride;
};

class Multiplier {
 public:
  Multiplier(Pool& pool, const Kernels& kernels);
  // Every product of x [prompt + generated, k], whose prompt rows come first.
  void multiply(const Product* products, int count, const float* x, int64_t prompt, int64_t generated);
  void* scratch(int thread) { return scratch_[size_t(thread)].need(size_t(kScratch)); }

  // A loop over rows of about `cost` operations each: by the caller alone while there is too little to share.
  template <class F>
  void over_rows(int64_t rows, int64_t cost, F&& body) {
    if (rows * cost < 32768) {
      for (int64_t r = 0; r < rows; ++r) body(r);
      return;
    }
    const int64_t run = std::max<int64_t>(1, std::min<int64_t>(16, rows / (4 * pool_.threads())));
    pool_.run((rows + run - 1) / run, [&](int64_t chunk, int) {
      for (int64_t r = chunk * run; r < std::min(rows, (chunk + 1) * run); ++r) body(r);
    });
  }

 private:
  struct Range {
    const Product* product;
    int64_t first, last;
  };
  void prepare(const Product* products, int count, const float* x, int64_t prompt, int64_t generated);
  void* pack(const float* x, int64_t rows, int64_t k, bool strips, Buffer& memory);
  void split(const Product* products, int count, int64_t unit, int64_t large);

  Pool& pool_;
  const Kernels& kernels_;
  Rows prompt_, generated_;
  Buffer panel_, strip_panel_, code_, scale_, sum_;
  std::vector<Range> ranges_;
  std::vector<Buffer> scratch_;  // a thread
};

}  // namespace olv
