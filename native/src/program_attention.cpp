// The ops of a program that use the KV cache: storing keys and values, and attention.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace olv {

// Heads of `own` columns, each padded with zeros to the d columns that a cache has for it.
const float* Program::padded(const float* x, int64_t rows, int64_t heads, int64_t own, int64_t d, Buffer& memory) {
  if (own == d) return x;
  float* to = memory.array<float>(rows * heads * d);
  matmul_.parallel_rows(rows, heads * d, [&](int64_t r) {
    for (int64_t h = r * heads; h < (r + 1) * heads; ++h) {
      memcpy(to + h * d, x + h * own, size_t(own) * 4);
      memset(to + h * d + own, 0, size_t(d - own) * 4);
    }
  });
  return to;
}

void Program::store(const olv_op& op, const olv_batch& batch) {
  const Cache& cache = caches_[size_t(op.cache)];
  const CacheView& v = cache.view;
  const int64_t d = v.head_dim, width = v.kv_heads * d, own = op.width / v.kv_heads;
  const float* keys = padded(value(op, op.a), tokens_.rows, v.kv_heads, own, d, padded_memory_[0]);
  const float* values = padded(value(op, op.b), tokens_.rows, v.kv_heads, own, d, padded_memory_[1]);
  const int32_t* table = batch.tables[cache.group];
  const int64_t pages = batch.table_pages[cache.group];
  // Attention reads whole pages and multiplies empty slots by zero, so what an earlier sequence left there must not be NaN:
  // a page that is begun but not filled by this batch is cleared.
  for (int64_t r = 0; r < tokens_.rows; ++r) {
    const int64_t sequence = sequence_[size_t(r)], position = position_[size_t(r)];
    if (position % kPage) continue;
    const int64_t end = r + kPage - 1;
    if (end < tokens_.rows && sequence_[size_t(end)] == sequence && position_[size_t(end)] == position + kPage - 1) continue;
    const int64_t bytes = v.kv_heads * v.page_bytes, at = table[sequence * pages + position / kPage] * bytes;
    memset(v.keys + at, 0, size_t(bytes));
    memset(v.values + at, 0, size_t(bytes));
  }
  // Values of neighboring slots share cache lines, so one thread stores all rows of a page, for one head.
  const int64_t groups = (tokens_.rows + kPage - 1) / kPage;
  matmul_.parallel_rows(groups * v.kv_heads, 4 * kPage * d, [&](int64_t chunk) {
    const int64_t h = chunk % v.kv_heads, first = chunk / v.kv_heads * kPage;
    const int64_t last = std::min(tokens_.rows, first + kPage);
    for (int64_t r = first; r < last;) {
      const int64_t sequence = sequence_[size_t(r)], position = position_[size_t(r)], slot = position % kPage;
      int64_t count = 1;  // rows with consecutive positions in one page
      while (r + count < last && slot + count < kPage && sequence_[size_t(r + count)] == sequence &&
             position_[size_t(r + count)] == position + count)
        ++count;
      const int64_t page = table[sequence * pages + position / kPage], at = r * width + h * d;
      kernels_.store_kv(v, page, h, slot, count, keys + at, values + at, width);
      r += count;
    }
  });
}

// The thread's memory for dequantized pages, emptied.
DequantizedPages* Program::dequantized(const CacheView& cache, int thread) {
  if (cache.type != OLV_Q8_0) return nullptr;
  DequantizedPages& pages = dequantized_[size_t(thread)];
  pages.memory = dequantized_memory_[size_t(thread)].array<uint16_t>(2 * kDequantizedPages * kPage * cache.head_dim);
  std::fill(&pages.page[0][0], &pages.page[0][0] + 2 * kDequantizedPages, -1);
  return &pages;
}

void Program::attend(const olv_op& op, const olv_batch& batch) {
  if (tokens_.prompt > 0) prefill_attention(op, batch);
  if (tokens_.prompt < tokens_.rows) decode_attention(op, batch);
}

void Program::prefill_attention(const olv_op& op, const olv_batch& batch) {
  const Cache& cache = caches_[size_t(op.cache)];
  const int q_per_kv = op.heads / op.kv_heads;
  // Tiles of rows of one sequence. Results do not depend on which rows share a tile: large ones read each key less often,
  // small ones keep all threads busy.
  tiles_.clear();
  const bool many = tokens_.prompt * op.heads >= int64_t(kTaskColumns) * 4 * pool_.threads();
  const int64_t tall = std::max(1, (many ? kTaskColumns : 32) / q_per_kv);
  for (int64_t r = 0; r < tokens_.prompt;) {
    int64_t end = r + 1;
    while (end < tokens_.prompt && end - r < tall && sequence_[size_t(end)] == sequence_[size_t(r)]) ++end;
    tiles_.push_back({r, int(end - r)});
    r = end;
  }
  pool_.run(int64_t(tiles_.size()) * op.kv_heads, [&](int64_t chunk, int thread) {
    // Head by head: the threads then read the same keys and values, which stay in their L2 caches. Of a head, tiles with
    // the most keys come first, for load balance.
    const QueryTile& tile = tiles_[tiles_.size() - 1 - size_t(chunk) % tiles_.size()];
    const int64_t sequence = sequence_[size_t(tile.first)];
    AttentionTask task{};
    task.cache = &cache.view;
    task.dequantized = dequantized(cache.view, thread);
    task.table = batch.tables[cache.group] + sequence * batch.table_pages[cache.group];
    task.q = value(op, op.a) + tile.first * op.width;
    task.out = value(op, op.out) + tile.first * op.width;
    task.stride = op.width;
    task.head_dim = op.head_dim;
    task.position = position_.data() + tile.first;
    task.last = (op.bidirectional ? last_ : position_).data() + tile.first;
    task.rows = tile.rows;
    task.kv_head = int(size_t(chunk) / tiles_.size());
    task.q_per_kv = q_per_kv;
    task.scale = op.scale;
    task.window = op.window;
    kernels_.prefill_attention(task, matmul_.scratch(thread));
  });
}

void Program::decode_attention(const olv_op& op, const olv_batch& batch) {
  const Cache& cache = caches_[size_t(op.cache)];
  const int q_per_kv = op.heads / op.kv_heads;
  const int64_t d = op.head_dim, rows = tokens_.rows - tokens_.prompt;
  // Split-KV: keys are split at fixed positions, so results do not depend on threads or on other rows.
  splits_.clear();
  split_begin_.resize(size_t(rows) + 1);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = position_[size_t(tokens_.prompt + r)];
    const int64_t from = op.window ? std::max<int64_t>(0, position - op.window + 1) : 0;
    split_begin_[size_t(r)] = int64_t(splits_.size());
    for (int64_t start = from / kSplit * kSplit; start <= position; start += kSplit)
      splits_.push_back({tokens_.prompt + r, std::max(start, from), std::min(start + kSplit, position + 1)});
  }
  split_begin_[size_t(rows)] = int64_t(splits_.size());
  const int64_t per_split = q_per_kv * (d + 2);
  float* memory = split_memory_.array<float>(int64_t(splits_.size()) * op.kv_heads * per_split);
  pool_.run(int64_t(splits_.size()) * op.kv_heads, [&](int64_t chunk, int thread) {
    const KvSplit& split = splits_[size_t(chunk / op.kv_heads)];
    float* result = memory + chunk * per_split;
    AttentionTask task{};
    task.cache = &cache.view;
    task.dequantized = dequantized(cache.view, thread);
    task.table = batch.tables[cache.group] + sequence_[size_t(split.row)] * batch.table_pages[cache.group];
    task.q = value(op, op.a) + split.row * op.width;
    task.position = position_.data() + split.row;
    task.rows = 1;
    task.kv_head = int(chunk % op.kv_heads);
    task.q_per_kv = q_per_kv;
    task.scale = op.scale;
    task.window = op.window;
    kernels_.decode_attention(task, split.first, split.last, {result, result + q_per_kv * d, result + q_per_kv * d + q_per_kv});
  });
  matmul_.parallel_rows(rows * op.kv_heads, 8 * q_per_kv * d, [&](int64_t chunk) {
    const int64_t r = chunk / op.kv_heads, kv_head = chunk % op.kv_heads;
    const int64_t first = split_begin_[size_t(r)], last = split_begin_[size_t(r) + 1];
    float* result = memory + (first * op.kv_heads + kv_head) * per_split;
    for (int64_t h = 0; h < q_per_kv; ++h) {
      const SplitResult head{result + h * d, result + q_per_kv * d + h, result + q_per_kv * d + q_per_kv + h};
      float* y = value(op, op.out) + (tokens_.prompt + r) * op.width + (kv_head * q_per_kv + h) * d;
      kernels_.merge_splits(head, op.kv_heads * per_split, last - first, d, y);
    }
  });
}

}  // namespace olv
