#include "matmul.h"

#include <new>

#include "blocks.h"

namespace olv {
namespace {

constexpr int64_t kRowBlock = 512;     // prompt rows that are multiplied with the same weight rows, where there are many
constexpr int64_t kWeightBlock = 192;  // weight rows that they are multiplied with, at least: those of a block of the GEMM

}  // namespace

void* Buffer::reserve(size_t bytes) {
  if (bytes > size_) {
    release();
    const size_t size = (bytes + kAlign - 1) / kAlign * kAlign;
    data_ = ::operator new(size, std::align_val_t(kAlign));
    size_ = size;
  }
  return data_;
}

void Buffer::release() {
  ::operator delete(data_, std::align_val_t(kAlign));
  data_ = nullptr;
  size_ = 0;
}

Buffer::~Buffer() { release(); }

Matmul::Matmul(Pool& pool, const Kernels& kernels)
    : pool_(pool), kernels_(kernels), scratch_(size_t(pool.threads())), expanded_(size_t(pool.threads())) {}

void Matmul::prepare(const Job* jobs, size_t count) {
  const int64_t k = jobs[0].products[0].weight->k;
  bool with_super_blocks = false, without = false, packed = false, codes = false;
  prompt_.assign(count, {});
  generated_.assign(count, {});
  blocks_.clear();
  for (size_t j = 0; j < count; ++j) {
    const Job& job = jobs[j];
    for (int i = 0; i < job.count; ++i) {
      const olv_weight& w = *job.products[i].weight;
      (has_super_blocks(w) ? with_super_blocks : without) = true;
      if (has_super_blocks(w)) (kernels_.takes_codes && kernels_.takes_codes(w) ? codes : packed) = true;
    }
    prompt_[j] = Activations{job.prompt, k, job.x};
    generated_[j] = Activations{job.generated, k, job.x + job.prompt * k};
    for (int64_t r = 0; r < job.prompt; r += 16) blocks_.push_back({j, r, std::min<int64_t>(16, job.prompt - r)});
  }
  if (without) pack(jobs, false, panel_, &Activations::panel);
  if (packed) pack(jobs, true, super_block_panel_, &Activations::super_block_panel);
  if (with_super_blocks) quantize(jobs, count, codes);
}

// Quantizes the generated rows of all jobs, and with `prompts` the others too.
void Matmul::quantize(const Job* jobs, size_t count, bool prompts) {
  const int64_t k = jobs[0].products[0].weight->k, super_blocks = super_blocks_of(k);
  int64_t rows = 0;
  for (size_t j = 0; j < count; ++j) rows += jobs[j].generated + (prompts ? jobs[j].prompt : 0);
  int8_t* code = code_.array<int8_t>(rows * super_blocks * kSuperBlock);
  float* scale = scale_.array<float>(rows * super_blocks * kGroups);
  float* sum = sum_.array<float>(rows * super_blocks * kGroups);
  blocks_.clear();
  for (size_t j = 0; j < count; ++j) {
    const auto add = [&](Activations& x, int64_t first) {
      const int64_t at = int64_t(blocks_.size()) * super_blocks;
      x.code = code + at * kSuperBlock;
      x.scale = scale + at * kGroups;
      x.sum = sum + at * kGroups;
      for (int64_t r = 0; r < x.count; ++r) blocks_.push_back({j, first + r, 1});
    };
    if (prompts) add(prompt_[j], 0);
    add(generated_[j], jobs[j].prompt);
  }
  parallel_rows(rows, 4 * k, [&](int64_t b) {
    const Block& block = blocks_[size_t(b)];
    const auto quantize = block.first < jobs[block.job].prompt ? kernels_.quantize_prompt : kernels_.quantize;
    quantize(jobs[block.job].x + block.first * k, k, code + b * super_blocks * kSuperBlock,
             scale + b * super_blocks * kGroups, sum + b * super_blocks * kGroups);
  });
}

// Packs the prompt rows of all jobs into panels, one after another.
void Matmul::pack(const Job* jobs, bool super_blocks, Buffer& memory, void* Activations::*panel) {
  if (blocks_.empty()) return;
  const int64_t k = jobs[0].products[0].weight->k, block_bytes = tiles_of(k) * kernels_.panel_bytes;
  uint8_t* place = memory.array<uint8_t>(int64_t(blocks_.size()) * block_bytes);
  for (size_t b = blocks_.size(); b-- > 0;) prompt_[blocks_[b].job].*panel = place + int64_t(b) * block_bytes;
  parallel_rows(int64_t(blocks_.size()), 64 * k, [&](int64_t b) {
    const Block& block = blocks_[size_t(b)];
    kernels_.pack(jobs[block.job].x + block.first * k, block.rows, k, super_blocks, place + b * block_bytes);
  });
}

// Splits the weight rows into about eight ranges per thread: few enough to be cheap, enough to balance the load if a
// core is slow. Four per thread if eight would be of less than `large` rows.
void Matmul::split(const Job* jobs, size_t count, int64_t Job::*rows, int64_t unit, int64_t large) {
  int64_t total = 0;
  for (size_t j = 0; j < count; ++j)
    for (int i = 0; i < jobs[j].count; ++i) total += jobs[j].*rows ? jobs[j].products[i].weight->n : 0;
  const int64_t eighth = total / (8 * pool_.threads()), quarter = total / (4 * pool_.threads());
  const int64_t size = std::max(unit, (std::max(eighth, std::min(quarter, large)) + unit - 1) / unit * unit);
  ranges_.clear();
  for (size_t j = 0; j < count; ++j)
    for (int i = 0; i < jobs[j].count && jobs[j].*rows; ++i)
      for (int64_t n = 0; n < jobs[j].products[i].weight->n; n += size)
        ranges_.push_back({&jobs[j].products[i], j, n, std::min(jobs[j].products[i].weight->n, n + size), 0, jobs[j].*rows});
}

// Many prompt rows in blocks of kRowBlock rows times as many weight rows as stay in L2, 1 MB, or kWeightBlock: each range of
// weight rows would otherwise read all panels from beyond L2, and with many threads that is what the others wait for.
void Matmul::split_blocks(const Job& job) {
  const int64_t k = job.products[0].weight->k, row_bytes = tiles_of(k) * kernels_.panel_bytes / 16;
  const int64_t blocks = (job.prompt + kRowBlock - 1) / kRowBlock;
  int64_t total = 0;
  for (int i = 0; i < job.count; ++i) total += job.products[i].weight->n;
  const int64_t fair = total * blocks / (4 * pool_.threads());
  const int64_t fit = std::max((int64_t(1) << 20) / row_bytes, kWeightBlock);
  const int64_t most = std::max<int64_t>(1, std::min({fit, int64_t(512), fair}) / 32) * 32;
  ranges_.clear();
  for (int i = 0; i < job.count; ++i) {
    const int64_t n = job.products[i].weight->n, times = (n + most - 1) / most, size = ((n + times - 1) / times + 31) / 32 * 32;
    for (int64_t first = 0; first < n; first += size)
      for (int64_t row = 0; row < job.prompt; row += kRowBlock)
        ranges_.push_back({&job.products[i], 0, first, std::min(n, first + size), row, std::min(kRowBlock, job.prompt - row)});
  }
}

// Calls the kernel with a range of weight rows as they lie; or with parts of the range that are expanded first, so many
// rows that they stay in about `bytes` of cache, and with the number of weight rows before the part.
template <class F>
void Matmul::multiply_rows(const Range& range, int64_t bytes, int thread, F&& kernel) {
  const olv_weight& w = *range.product->weight;
  if (!is_expanded(w.type)) return kernel(w, range.first, range.last, 0);
  const int64_t fit = bytes / (w.k + w.k / 4), unit = fit < 32 ? 4 : 32, rows = std::max(unit, fit / unit * unit);
  int8_t* code = expanded_[size_t(thread)].array<int8_t>(rows * (w.k + w.k / 4));
  float* scale = reinterpret_cast<float*>(code + rows * w.k);
  for (int64_t n = range.first; n < range.last; n += rows) {
    const int64_t count = std::min(rows, range.last - n);
    kernels_.expand(w, n, n + count, code, scale);
    const auto at = [](const void* p) { return static_cast<const uint8_t*>(p); };
    kernel(olv_weight{OLV_GROUPED, 16, at(code), at(scale), count, w.k}, 0, count, n);
  }
}

void Matmul::multiply(const Job* jobs, int64_t count) {
  if (!count) return;
  prepare(jobs, size_t(count));
  if (count == 1 && jobs[0].prompt > kRowBlock) split_blocks(jobs[0]);
  else split(jobs, size_t(count), &Job::prompt, 32, 128);  // each range reads all panels, from beyond L2: worth 128 rows
  const int64_t k = jobs[0].products[0].weight->k, super_blocks = super_blocks_of(k);
  const int64_t panel_bytes = tiles_of(k) * kernels_.panel_bytes;  // of sixteen rows
  pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int thread) {
    const Range& r = ranges_[size_t(chunk)];
    const Product& to = *r.product;
    Activations x = prompt_[r.job];
    x.count = r.rows;
    for (void** panel : {&x.panel, &x.super_block_panel})
      if (*panel) *panel = static_cast<uint8_t*>(*panel) + r.row / 16 * panel_bytes;
    if (x.code) {
      x.code += r.row * super_blocks * kSuperBlock;
      x.scale += r.row * super_blocks * kGroups;
      x.sum += r.row * super_blocks * kGroups;
    }
    multiply_rows(r, 512 << 10, thread, [&](const olv_weight& w, int64_t first, int64_t last, int64_t before) {
      const float* bias = to.bias ? to.bias + before : nullptr;
      kernels_.gemm(w, first, last, x, bias, to.y + r.row * to.stride + before, to.stride, scratch(thread));
    });
  });
  split(jobs, size_t(count), &Job::generated, 8, 0);
  pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int thread) {
    const Range& r = ranges_[size_t(chunk)];
    const Product& to = *r.product;
    float* y = to.y + jobs[r.job].prompt * to.stride;
    multiply_rows(r, 16 << 10, thread, [&](const olv_weight& w, int64_t first, int64_t last, int64_t before) {
      kernels_.gemv(w, first, last, generated_[r.job], y + before, to.stride);
    });
  });
}

}  // namespace olv
