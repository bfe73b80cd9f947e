// Linear ops on a thread pool: activations are quantized or packed once, then any number of products with them run in
// one parallel loop.
#pragma once
#include <math.h>

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace olv {

// 64-byte aligned memory that grows on demand and never shrinks. Growing drops what it held.
class Buffer {
 public:
  void* reserve(size_t bytes);
  template <class T>
  T* array(int64_t count) { return static_cast<T*>(reserve(size_t(count) * sizeof(T))); }
  ~Buffer();
  Buffer() = default;
  Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
  Buffer(const Buffer&) = delete;

 private:
  static constexpr size_t kAlign = 64;
  void release();
  void* data_ = nullptr;
  size_t size_ = 0;
};

struct Product {
  const olv_weight* weight;
  float* y;  // of the first row
  int64_t stride;
  const float* bias = nullptr;  // added to prompt rows
  float low = -INFINITY, high = INFINITY;  // limits of the result, after that
  bool is_limited() const { return low != -INFINITY || high != INFINITY; }
};

// y = x, at least `low` and at most `high`; NaN stays. x may be y.
void clamp(const float* x, float* y, int64_t width, float low, float high);

// Rows x [prompt + generated, k], prompt rows first (GEMM), then generated rows (GEMV), and the products with them.
struct Job {
  const Product* products;
  int count;
  const float* x;
  int64_t prompt, generated;
  // Of two products with as many rows, activation(first) · second goes to `gated`, which has their stride; null: no gate.
  float* gated = nullptr;
  int activation = OLV_SILU;
};

// Computes rows [first, last) of x, about `cost` operations each, before they are packed or quantized.
struct RowsBefore {
  void (*call)(const void* argument, int64_t first, int64_t last) = nullptr;
  const void* argument = nullptr;
  int64_t cost = 0;
};

constexpr int64_t kParallelCost = 32768;  // operations that are worth a parallel loop

class Matmul {
 public:
  Matmul(Pool& pool, const Kernels& kernels);
  // All jobs have the same k. One parallel loop prepares the rows, one has the GEMMs, one the GEMVs. `before` is of one job.
  void multiply(const Job* jobs, int64_t count, const RowsBefore& before = {});
  void multiply(const Job& job, const RowsBefore& before = {}) { multiply(&job, 1, before); }
  void* scratch(int thread) { return scratch_[size_t(thread)].reserve(size_t(kScratch)); }

  // A parallel loop over rows of about `cost` operations each; serial while there is too little work to share.
  template <class F>
  void parallel_rows(int64_t rows, int64_t cost, F&& body) {
    if (rows * cost < kParallelCost) {
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
    int64_t first, last;  // rows of the weight
    int64_t row, rows;    // of the job
  };
  // Rows of a job that are packed or quantized together: up to sixteen prompt rows, or a generated row.
  struct Block {
    size_t job;
    int64_t first, rows;
    int64_t panel, code;  // the first panel and row of codes that are theirs; -1: they have none
  };
  void prepare(const Job* jobs, size_t count, const RowsBefore& before);
  template <class F>
  void multiply_rows(const Product& product, const Range& range, bool as_they_lie, int64_t bytes, int thread, F&& kernel);
  template <class F>
  void multiply_range(const Job& job, const Range& range, int64_t first_row, F&& multiply);
  void split(const Job* jobs, size_t count, int64_t Job::*rows, int64_t unit, int64_t large);
  void split_blocks(const Job& job);

  Pool& pool_;
  const Kernels& kernels_;
  std::vector<Activations> prompt_, generated_;  // by job
  std::vector<Block> blocks_;
  Buffer panel_, super_block_panel_, code_, scale_, sum_;
  std::vector<Range> ranges_;
  std::vector<Buffer> scratch_, expanded_;  // by thread
};

}  // namespace olv
