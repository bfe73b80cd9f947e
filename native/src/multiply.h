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

// Rows x [prompt + generated, k], prompt rows first, and every product that is wanted of them.
struct Job {
  const Product* products;
  int count;
  const float* x;
  int64_t prompt, generated;
};

class Multiplier {
 public:
  Multiplier(Pool& pool, const Kernels& kernels);
  // Jobs of one k, in one parallel loop.
  void multiply(const Job* jobs, int64_t count);
  void multiply(const Job& job) { multiply(&job, 1); }
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
    size_t job;
    int64_t first, last;
  };
  // Rows of a job that are prepared together.
  struct Block {
    size_t job;
    int64_t first, rows;
  };
  void prepare(const Job* jobs, size_t count);
  void pack(const Job* jobs, bool strips, Buffer& memory, void* Rows::*panel);
  void split(const Job* jobs, size_t count, int64_t Job::*rows, int64_t unit, int64_t large);

  Pool& pool_;
  const Kernels& kernels_;
  std::vector<Rows> prompt_, generated_;  // a job
  std::vector<Block> blocks_;
  Buffer panel_, strip_panel_, code_, scale_, sum_;
  std::vector<Range> ranges_;
  std::vector<Buffer> scratch_;  // a thread
};

}  // namespace olv
