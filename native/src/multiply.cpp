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

void Multiplier::prepare(const Job* jobs, size_t count) {
  const int64_t k = jobs[0].products[0].weight->k, strips = strips_of(k);
  bool with_strips = false, without = false;
  int64_t generated = 0;
  prompt_.assign(count, {});
  generated_.assign(count, {});
  blocks_.clear();
  for (size_t j = 0; j < count; ++j) {
    const Job& job = jobs[j];
    for (int i = 0; i < job.count; ++i) (has_strips(*job.products[i].weight) ? with_strips : without) = true;
    prompt_[j] = Rows{job.prompt, k, job.x};
    generated_[j] = Rows{job.generated, k, job.x + job.prompt * k};
    for (int64_t r = 0; r < job.prompt; r += 16) blocks_.push_back({j, r, std::min<int64_t>(16, job.prompt - r)});
    generated += job.generated;
  }
  if (without) pack(jobs, false, panel_, &Rows::panel);
  if (with_strips) pack(jobs, true, strip_panel_, &Rows::strip_panel);
  if (!generated || !with_strips) return;
  int8_t* code = code_.of<int8_t>(generated * strips * kStrip);
  float *scale = scale_.of<float>(generated * strips * kGroups), *sum = sum_.of<float>(generated * strips * kGroups);
  blocks_.clear();
  for (size_t j = 0; j < count; ++j) {
    generated_[j].code = code;
    generated_[j].scale = scale;
    generated_[j].sum = sum;
    code += jobs[j].generated * strips * kStrip;
    scale += jobs[j].generated * strips * kGroups;
    sum += jobs[j].generated * strips * kGroups;
    for (int64_t r = 0; r < jobs[j].generated; ++r) blocks_.push_back({j, r, 1});
  }
  over_rows(generated, 4 * k, [&](int64_t b) {
    const Rows& rows = generated_[blocks_[size_t(b)].job];
    const int64_t r = blocks_[size_t(b)].first;
    kernels_.quantize(rows.values + r * k, k, rows.code + r * strips * kStrip, rows.scale + r * strips * kGroups,
                      rows.sum + r * strips * kGroups);
  });
}

// The prompt rows of all jobs as panels, one after another.
void Multiplier::pack(const Job* jobs, bool strips, Buffer& memory, void* Rows::*panel) {
  if (blocks_.empty()) return;
  const int64_t k = jobs[0].products[0].weight->k, block_bytes = tiles_of(k) * kernels_.panel_bytes;
  uint8_t* place = memory.of<uint8_t>(int64_t(blocks_.size()) * block_bytes);
  for (size_t b = blocks_.size(); b-- > 0;) prompt_[blocks_[b].job].*panel = place + int64_t(b) * block_bytes;
  over_rows(int64_t(blocks_.size()), 64 * k, [&](int64_t b) {
    const Block& block = blocks_[size_t(b)];
    kernels_.pack(jobs[block.job].x + block.first * k, block.rows, k, strips, place + b * block_bytes);
  });
}

// Around eight ranges a thread: few enough to be cheap, many enough to even out a core that is late. Four if eight would be
// of less than `large` rows.
void Multiplier::split(const Job* jobs, size_t count, int64_t Job::*rows, int64_t unit, int64_t large) {
  int64_t total = 0;
  for (size_t j = 0; j < count; ++j)
    for (int i = 0; i < jobs[j].count; ++i) total += jobs[j].*rows ? jobs[j].products[i].weight->n : 0;
  const int64_t eighth = total / (8 * pool_.threads()), quarter = total / (4 * pool_.threads());
  const int64_t size = std::max(unit, (std::max(eighth, std::min(quarter, large)) + unit - 1) / unit * unit);
  ranges_.clear();
  for (size_t j = 0; j < count; ++j)
    for (int i = 0; i < jobs[j].count && jobs[j].*rows; ++i)
      for (int64_t n = 0; n < jobs[j].products[i].weight->n; n += size)
        ranges_.push_back({&jobs[j].products[i], j, n, std::min(jobs[j].products[i].weight->n, n + size)});
}

void Multiplier::multiply(const Job* jobs, int64_t count) {
  if (!count) return;
  prepare(jobs, size_t(count));
  split(jobs, size_t(count), &Job::prompt, 32, 128);  // a visit of the panels, from beyond the core's caches, is worth 128 rows
  pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int thread) {
    const Range& r = ranges_[size_t(chunk)];
    const Product& to = *r.product;
    kernels_.gemm(*to.weight, r.first, r.last, prompt_[r.job], to.y, to.stride, scratch(thread));
  });
  split(jobs, size_t(count), &Job::generated, 8, 0);
  pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int) {
    const Range& r = ranges_[size_t(chunk)];
    const Product& to = *r.product;
    kernels_.gemv(*to.weight, r.first, r.last, generated_[r.job], to.y + jobs[r.job].prompt * to.stride, to.stride);
  });
}

}  // namespace olv
