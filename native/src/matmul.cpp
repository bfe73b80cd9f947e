#include "matmul.h"

#include <new>

#include "blocks.h"
#include "vec.h"

namespace olv {
namespace {

constexpr int64_t kRowBlock = 512;     // prompt rows that are multiplied with the same weight rows, where there are many
constexpr int64_t kFewRows = 128;      // the same at least, where threads keep the weight rows unpacked
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

void clamp(const float* x, float* y, int64_t width, float low, float high) {
  const v16 lowest = splat(low), highest = splat(high);
  const auto limit = [&](v16 v) {
    v = select(v < lowest, lowest, v);
    return select(v > highest, highest, v);
  };
  int64_t i = 0;
  for (; i + 16 <= width; i += 16) storev(y + i, limit(loadv(x + i)));
  if (i == width) return;
  const v16 rest = limit(load_partial(x + i, width - i));
  memcpy(y + i, &rest, size_t(width - i) * 4);
}

Matmul::Matmul(Pool& pool, const Kernels& kernels)
    : pool_(pool), kernels_(kernels), scratch_(size_t(pool.threads())), expanded_(size_t(pool.threads())),
      passing_(size_t(pool.threads())) {}

// Packs and quantizes the rows of all jobs, as their weights need them.
void Matmul::prepare(const Job* jobs, size_t count, const RowsBefore& before) {
  const int64_t k = jobs[0].products[0].weight->k, super_blocks = super_blocks_of(k);
  const bool ready = count == 1 && packed_.panel && packed_.x == jobs[0].x && packed_.rows == jobs[0].prompt && packed_.k == k;
  bool with_super_blocks = false, without = false, packed = false, codes = false;
  int64_t panels = 0, code_rows = 0, rows = 0;
  for (size_t j = 0; j < count; ++j)
    for (int i = 0; i < jobs[j].count; ++i) {
      const olv_weight& w = *jobs[j].products[i].weight;
      (has_super_blocks(w) ? with_super_blocks : without) = true;
      if (has_super_blocks(w)) (kernels_.takes_codes && kernels_.takes_codes(w) ? codes : packed) = true;
    }
  prompt_.assign(count, {});
  generated_.assign(count, {});
  blocks_.clear();
  for (size_t j = 0; j < count; ++j) {
    for (int64_t r = 0; r < jobs[j].prompt && !ready; r += 16) {
      const int64_t here = std::min<int64_t>(16, jobs[j].prompt - r);
      blocks_.push_back({j, r, here, panels++, codes ? code_rows : -1});
      if (codes) code_rows += here;
    }
    for (int64_t r = 0; r < jobs[j].generated; ++r)
      blocks_.push_back({j, jobs[j].prompt + r, 1, -1, with_super_blocks ? code_rows++ : -1});
    rows += jobs[j].prompt + jobs[j].generated;
  }
  const int64_t block_bytes = tiles_of(k) * kernels_.panel_bytes;
  uint8_t* panel = without ? panel_.array<uint8_t>(panels * block_bytes) : nullptr;
  uint8_t* super_block_panel = packed ? super_block_panel_.array<uint8_t>(panels * block_bytes) : nullptr;
  int8_t* code = code_.array<int8_t>(code_rows * super_blocks * kSuperBlock);
  float* scale = scale_.array<float>(code_rows * super_blocks * kGroups);
  float* sum = sum_.array<float>(code_rows * super_blocks * kGroups);
  for (size_t b = blocks_.size(); b-- > 0;) {
    const Block& block = blocks_[b];
    const Job& job = jobs[block.job];
    const bool generated = block.panel < 0;
    Activations& x = (generated ? generated_ : prompt_)[block.job];
    x = Activations{generated ? job.generated : job.prompt, k, job.x + (generated ? job.prompt * k : 0)};
    if (block.code >= 0) {
      x.code = code + block.code * super_blocks * kSuperBlock;
      x.scale = scale + block.code * super_blocks * kGroups;
      x.sum = sum + block.code * super_blocks * kGroups;
    }
    if (!generated && without) x.panel = panel + block.panel * block_bytes;
    if (!generated && packed) x.super_block_panel = super_block_panel + block.panel * block_bytes;
  }
  if (ready) {
    Activations& x = prompt_[0];
    x = Activations{jobs[0].prompt, k, jobs[0].x};
    (packed_.super_blocks ? x.super_block_panel : x.panel) = packed_.panel;
  }
  const auto prepare_block = [&](int64_t b, int) {
    const Block& block = blocks_[size_t(b)];
    const Job& job = jobs[block.job];
    const float* x = job.x + block.first * k;
    if (before.call) before.call(before.argument, block.first, block.first + block.rows);
    if (block.panel >= 0 && without) kernels_.pack(x, k, block.rows, 0, k, k, false, panel + block.panel * block_bytes);
    if (block.panel >= 0 && packed)
      kernels_.pack(x, k, block.rows, 0, k, k, true, super_block_panel + block.panel * block_bytes);
    const auto quantize = block.panel >= 0 ? kernels_.quantize_prompt : kernels_.quantize;
    for (int64_t r = 0; r < block.rows && block.code >= 0; ++r) {
      const int64_t at = (block.code + r) * super_blocks;
      quantize(x + r * k, k, code + at * kSuperBlock, scale + at * kGroups, sum + at * kGroups);
    }
  };
  if (!before.call && !panels && !code_rows) return;
  if (rows * (4 * k + before.cost) >= kParallelCost) return pool_.run(int64_t(blocks_.size()), prepare_block);
  for (int64_t b = 0; b < int64_t(blocks_.size()); ++b) prepare_block(b, 0);
}

// Splits the weight rows into about eight ranges per thread: few enough to be cheap, enough to balance the load if a
// core is slow. Four per thread if eight would be of less than `large` rows. A range of a gate is of both its products.
void Matmul::split(const Job* jobs, size_t count, int64_t Job::*rows, int64_t unit, int64_t large) {
  const auto products = [&](size_t j) { return jobs[j].*rows ? jobs[j].ranged() : 0; };
  int64_t total = 0;
  for (size_t j = 0; j < count; ++j)
    for (int i = 0; i < products(j); ++i) total += jobs[j].products[i].weight->n * jobs[j].together();
  const int64_t eighth = total / (8 * pool_.threads()), quarter = total / (4 * pool_.threads());
  ranges_.clear();
  for (size_t j = 0; j < count; ++j)
    for (int i = 0; i < products(j); ++i) {
      const Product& product = jobs[j].products[i];
      const int64_t pair = jobs[j].together();
      const int64_t size = std::max(unit, (std::max(eighth, std::min(quarter, large)) / pair + unit - 1) / unit * unit);
      for (int64_t n = 0; n < product.weight->n; n += size)
        ranges_.push_back({&product, j, n, std::min(product.weight->n, n + size), 0, jobs[j].*rows});
    }
}

// Many prompt rows in blocks of kRowBlock rows times as many weight rows as stay in L2, 1 MB, or kWeightBlock: each range of
// weight rows would otherwise read all panels from beyond L2, and with many threads that is what the others wait for.
void Matmul::split_blocks(const Job& job) {
  const int64_t k = job.products[0].weight->k, row_bytes = tiles_of(k) * kernels_.panel_bytes / 16;
  const int64_t blocks = (job.prompt + kRowBlock - 1) / kRowBlock;
  int64_t total = 0;
  const int products = job.ranged();
  for (int i = 0; i < products; ++i) total += job.products[i].weight->n;
  const int64_t fair = total * blocks / (4 * pool_.threads());
  const int64_t fit = std::max((int64_t(1) << 20) / row_bytes, kWeightBlock);
  const int64_t most = std::max<int64_t>(1, std::min({fit, int64_t(512), fair}) / 32) * 32;
  ranges_.clear();
  for (int i = 0; i < products; ++i) {
    const int64_t n = job.products[i].weight->n, times = (n + most - 1) / most, size = ((n + times - 1) / times + 31) / 32 * 32;
    for (int64_t first = 0; first < n; first += size)
      for (int64_t row = 0; row < job.prompt; row += kRowBlock)
        ranges_.push_back({&job.products[i], 0, first, std::min(n, first + size), row, std::min(kRowBlock, job.prompt - row)});
  }
}

// Where threads can keep weight rows unpacked: ranges that fit half of what they keep, as many for each thread, and of each
// the prompt rows in blocks, one after the other. A thread unpacks a range once, and reads the panels of x once for it;
// threads that are done take blocks of others.
void Matmul::split_kept(const Job& job) {
  const int64_t k = job.products[0].weight->k, pair = job.together(), threads = pool_.threads();
  const int products = job.ranged();
  int64_t total = 0;
  for (int i = 0; i < products; ++i) total += job.products[i].weight->n;
  const int64_t tile_bytes = 2 * pair * tiles_of(k) * kernels_.panel_bytes / 16;
  const int64_t fit = std::clamp<int64_t>(kernels_.kept_bytes / tile_bytes, 32, kKeptRows);
  const int64_t few = (job.prompt + kFewRows - 1) / kFewRows;  // blocks of rows, at most
  const int64_t rounds = std::max((total + threads * fit - 1) / (threads * fit), (4 + few - 1) / few);
  const int64_t most = (total + 32 * threads * rounds - 1) / (32 * threads * rounds) * 32;
  const auto ranges_of = [&](int64_t n) { return (n + most - 1) / most; };
  int64_t ranges = 0;
  for (int i = 0; i < products; ++i) ranges += ranges_of(job.products[i].weight->n);
  int64_t tall = kRowBlock;
  while (tall > kFewRows && ranges * ((job.prompt + tall - 1) / tall) < 8 * threads) tall /= 2;
  ranges_.clear();
  for (int i = 0; i < products; ++i) {
    const int64_t n = job.products[i].weight->n, size = ((n + ranges_of(n) - 1) / ranges_of(n) + 31) / 32 * 32;
    for (int64_t first = 0; first < n; first += size)
      for (int64_t row = 0; row < job.prompt; row += tall)
        ranges_.push_back({&job.products[i], 0, first, std::min(n, first + size), row, std::min(tall, job.prompt - row)});
  }
}

// Memory for rows that are packed for the next call; none where they are quantized.
Matmul::Packed Matmul::packing(const float* x, int64_t rows, const olv_weight& w) {
  if (!rows || (has_super_blocks(w) && kernels_.takes_codes && kernels_.takes_codes(w))) return {};
  turn_ = 1 - turn_;
  const int64_t bytes = (rows + 15) / 16 * tiles_of(w.k) * kernels_.panel_bytes;
  return {x, rows, w.k, has_super_blocks(w), packed_memory_[turn_].array<uint8_t>(bytes)};
}

bool Matmul::begin_packing(const float* x, int64_t rows, const olv_weight& w) {
  packed_ = packing(x, rows, w);
  return packed_.panel;
}

void Matmul::pack_into(const Packed& to, const float* from, int64_t stride, int64_t row, int64_t rows, int64_t first,
                       int64_t last) {
  for (int64_t r = 0; r < rows; r += 16)
    kernels_.pack(from + r * stride, stride, std::min<int64_t>(16, rows - r), first, last, to.k, to.super_blocks,
                  to.panel + (row + r) / 16 * tiles_of(to.k) * kernels_.panel_bytes);
}

// Calls the kernel with a range of weight rows as they lie; or, of the types that are expanded, with parts of the range that
// are expanded first, so many rows that they stay in about `bytes` of cache, and with the number of weight rows before the part.
template <class F>
void Matmul::multiply_rows(const Product& product, const Range& range, bool as_they_lie, int64_t bytes, int thread, F&& kernel) {
  const olv_weight& w = *product.weight;
  if (!is_expanded(w.type) || as_they_lie) return kernel(w, range.first, range.last, 0);
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

Matmul::Results Matmul::results_of(const Job& job, const Range& range, int64_t row) const {
  Results to{{}, nullptr, range.product->stride};
  const int64_t at = row * to.stride + range.first;
  for (int i = 0; i < job.together(); ++i) to.y[i] = range.product[i].y + at;
  if (job.gated) to.gated = job.gated + at;
  return to;
}

// A range of a product, or of the two of a gate. Limits and the gate follow at once, while their operands are in this core's
// caches.
template <class F>
void Matmul::multiply_range(const Job& job, const Range& range, const Results& to, F&& multiply) {
  const int64_t width = range.last - range.first;
  for (int i = 0; i < job.together(); ++i) multiply(range.product[i], to.y[i]);
  for (int64_t at = 0; at < range.rows * to.stride; at += to.stride) {
    for (int i = 0; i < job.together(); ++i) {
      const Product& product = range.product[i];
      if (is_limited(product.low, product.high)) clamp(to.y[i] + at, to.y[i] + at, width, product.low, product.high);
    }
    if (!job.gated) continue;
    kernels_.gate(to.y[0] + at, job.ones ? job.ones : to.y[1] + at, to.gated + at, width, job.activation);
    if (is_limited(job.low, job.high)) clamp(to.gated + at, to.gated + at, width, job.low, job.high);
  }
}

void Matmul::multiply(const Job* jobs, int64_t count, const RowsBefore& before) {
  if (!count) return;
  if (count > 1 || before.call) packed_ = {};
  prepare(jobs, size_t(count), before);
  next_ = {};
  const bool keeps = count == 1 && kernels_.kept_bytes && jobs[0].prompt > 0;
  if (count == 1 && jobs[0].next) next_ = packing(jobs[0].gated, jobs[0].prompt, *jobs[0].next);
  if (keeps) split_kept(jobs[0]);
  else if (count == 1 && jobs[0].prompt > kRowBlock) split_blocks(jobs[0]);
  else split(jobs, size_t(count), &Job::prompt, 32, 128);  // each range reads all panels, from beyond L2: worth 128 rows
  kept_.assign(size_t(pool_.threads()), nullptr);
  const int64_t k = jobs[0].products[0].weight->k, super_blocks = super_blocks_of(k);
  const int64_t panel_bytes = tiles_of(k) * kernels_.panel_bytes;  // of sixteen rows
  pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int thread) {
    const Range& r = ranges_[size_t(chunk)];
    Activations x = prompt_[r.job];
    x.count = r.rows;
    for (void** panel : {&x.panel, &x.super_block_panel})
      if (*panel) *panel = static_cast<uint8_t*>(*panel) + r.row / 16 * panel_bytes;
    if (x.code) {
      x.code += r.row * super_blocks * kSuperBlock;
      x.scale += r.row * super_blocks * kGroups;
      x.sum += r.row * super_blocks * kGroups;
    }
    const Range* last = kept_[size_t(thread)];
    const int64_t bytes = (r.last - r.first + 31) / 32 * 2 * panel_bytes;
    const bool fits = keeps && r.last - r.first <= kKeptRows && bytes <= kernels_.kept_bytes;
    const bool unpacked = fits && last && last->product == r.product && last->first == r.first;
    Results to = results_of(jobs[r.job], r, r.row);
    if (next_.panel && jobs[r.job].passing) {
      to.stride = r.last - r.first;
      to.y[0] = to.gated = passing_[size_t(thread)].array<float>(2 * r.rows * to.stride);
      to.y[1] = to.y[0] + r.rows * to.stride;
    }
    multiply_range(jobs[r.job], r, to, [&](const Product& product, float* y) {
      // The second product of a gate has the second half of the scratch.
      uint8_t* memory = static_cast<uint8_t*>(scratch(thread)) + (fits && &product != r.product ? kScratch / 2 : 0);
      multiply_rows(product, r, false, 512 << 10, thread, [&](const olv_weight& w, int64_t first, int64_t last, int64_t before) {
        const float* bias = product.bias ? product.bias + before : nullptr;
        kernels_.gemm(w, first, last, x, bias, y - r.first + before, to.stride, memory,
                      unpacked && !is_expanded(product.weight->type));
      });
    });
    kept_[size_t(thread)] = &r;
    if (next_.panel) pack_into(next_, to.gated, to.stride, r.row, r.rows, r.first, r.last);
  });
  split(jobs, size_t(count), &Job::generated, 8, 0);
  pool_.run(int64_t(ranges_.size()), [&](int64_t chunk, int thread) {
    const Range& r = ranges_[size_t(chunk)];
    const Results to = results_of(jobs[r.job], r, jobs[r.job].prompt);
    multiply_range(jobs[r.job], r, to, [&](const Product& product, float* y) {
      const bool as_they_lie = kernels_.gemv_expanded && jobs[r.job].generated == 1;
      multiply_rows(product, r, as_they_lie, 16 << 10, thread,
                    [&](const olv_weight& w, int64_t first, int64_t last, int64_t before) {
                      kernels_.gemv(w, first, last, generated_[r.job], y - r.first + before, to.stride);
                    });
    });
  });
  packed_ = next_;
}

}  // namespace olv
