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
};

inline bool is_limited(float low, float high) { return low != -INFINITY || high != INFINITY; }

// y = x, at least `low` and at most `high`; NaN stays. x may be y.
void clamp(const float* x, float* y, int64_t width, float low, float high);

// Rows x [prompt + generated, k], prompt rows first (GEMM), then generated rows (GEMV), and the products with them.
struct Job {
  const Product* products;
  int count;
  const float* x;
  int64_t prompt, generated;
  // Of two products with as many rows, activation(first) · second goes to `gated`, which has their stride; null: no gate.
  // Of one product, activation(first), if there are ones to multiply it with.
  float* gated = nullptr;
  int activation = OLV_SILU;
  const float* ones = nullptr;
  float low = -INFINITY, high = INFINITY;  // limits of `gated`
  // What `gated` is multiplied with by the next call, if that is known: prompt rows are packed for it. `passing`: nothing
  // else reads `gated` or the products, and those of prompt rows are not written if they are packed.
  const olv_weight* next = nullptr;
  bool passing = false;

  int together() const { return gated && !ones ? 2 : 1; }  // products that a range of weight rows is for
  int ranged() const { return gated ? 1 : count; }         // products whose rows are divided into ranges
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
  // For prompt rows x of the next call, which computes one product with w: the caller packs them, by columns of w's tiles and
  // by sixteen rows, or the last ones, once they are computed. False: they cannot be packed ahead.
  bool begin_packing(const float* x, int64_t rows, const olv_weight& w);
  void pack(int64_t row, int64_t rows, int64_t first, int64_t last) {
    pack_into(packed_, packed_.x + row * packed_.k + first, packed_.k, row, rows, first, last);
  }
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
  // Where the results of a range go: of its first row and column.
  struct Results {
    float* y[2];
    float* gated;
    int64_t stride;
  };
  Results results_of(const Job& job, const Range& range, int64_t row) const;
  template <class F>
  void multiply_range(const Job& job, const Range& range, const Results& to, F&& multiply);
  void split(const Job* jobs, size_t count, int64_t Job::*rows, int64_t unit, int64_t large);
  void split_blocks(const Job& job);
  void split_kept(const Job& job);

  Pool& pool_;
  const Kernels& kernels_;
  std::vector<Activations> prompt_, generated_;  // by job
  std::vector<Block> blocks_;
  // Prompt rows x [rows, k] that are packed before the call that multiplies them, for weights with or without super-blocks.
  struct Packed {
    const float* x = nullptr;
    int64_t rows = 0, k = 0;
    bool super_blocks = false;
    uint8_t* panel = nullptr;
  } packed_, next_;  // for this call, and for the next
  Packed packing(const float* x, int64_t rows, const olv_weight& w);
  void pack_into(const Packed& to, const float* from, int64_t stride, int64_t row, int64_t rows, int64_t first, int64_t last);
  int turn_ = 0;  // of packed_memory_: x may be in the other one
  Buffer panel_, super_block_panel_, packed_memory_[2], code_, scale_, sum_;
  std::vector<Range> ranges_;
  std::vector<const Range*> kept_;  // by thread: the weight rows that are unpacked in its scratch
  std::vector<Buffer> scratch_, expanded_, passing_;  // by thread
};

}  // namespace olv
