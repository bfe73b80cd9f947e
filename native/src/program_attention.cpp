// The ops of a program that use the KV cache: storing keys and values, and attention.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace olv {

// Attention reads whole pages and multiplies empty slots by zero, so what an earlier sequence left there must not be NaN:
// a page that is begun but not filled by this batch is cleared.
void Program::clear_begun_pages(const olv_op& op, const olv_batch& batch) {
  const Cache& cache = caches_[size_t(op.cache)];
  const CacheView& v = cache.view;
  for (int64_t r = 0; r < tokens_.rows; ++r) {
    const int64_t sequence = sequence_[size_t(r)], position = position_[size_t(r)];
    if (position % kPage) continue;
    const int64_t end = r + kPage - 1;
    if (end < tokens_.rows && sequence_[size_t(end)] == sequence && position_[size_t(end)] == position + kPage - 1) continue;
    const int64_t page = batch.tables[cache.group][sequence * batch.table_pages[cache.group] + position / kPage];
    const int64_t bytes = v.kv_heads * v.page_bytes;
    memset(v.keys + page * bytes, 0, size_t(bytes));
    memset(v.values + page * bytes, 0, size_t(bytes));
  }
}

// Stores the keys and values of one head, for rows [first, last): theirs begin at `keys` and `values`, `stride` floats apart.
void Program::store_rows(const olv_op& op, const olv_batch& batch, const float* keys, const float* values, int64_t stride,
                         int64_t head, int64_t first, int64_t last) {
  const Cache& cache = caches_[size_t(op.cache)];
  for (int64_t r = first; r < last;) {
    const int64_t sequence = sequence_[size_t(r)], position = position_[size_t(r)], slot = position % kPage;
    int64_t count = 1;  // rows with consecutive positions in one page
    while (r + count < last && slot + count < kPage && sequence_[size_t(r + count)] == sequence &&
           position_[size_t(r + count)] == position + count)
      ++count;
    const int64_t page = batch.tables[cache.group][sequence * batch.table_pages[cache.group] + position / kPage];
    const int64_t at = (r - first) * stride;
    kernels_.store_kv(cache.view, page, head, slot, count, keys + at, values + at, stride);
    r += count;
  }
}

// The same where values have as many columns for a head as the cache.
void Program::store_head(const olv_op& op, const olv_batch& batch, int64_t head, int64_t first, int64_t last) {
  const int64_t at = first * op.width + head * caches_[size_t(op.cache)].view.head_dim;
  store_rows(op, batch, value(op, op.a) + at, value(op, op.b) + at, op.width, head, first, last);
}

void Program::store(const olv_op& op, const olv_batch& batch) {
  const CacheView& v = caches_[size_t(op.cache)].view;
  const int64_t d = v.head_dim, own = op.width / v.kv_heads;
  clear_begun_pages(op, batch);
  // Values of neighboring slots share cache lines, so one thread stores all rows of a page, for one head.
  const auto store_page = [&](int64_t chunk, int thread) {
    const int64_t head = chunk % v.kv_heads, first = chunk / v.kv_heads * kPage, last = std::min(tokens_.rows, first + kPage);
    if (own == d) return store_head(op, batch, head, first, last);
    // The cache has d columns for a head of `own`: the others are zero.
    float* padded = static_cast<float*>(matmul_.scratch(thread));  // [keys and values][kPage][d]
    for (int64_t r = 0; r < 2 * kPage; ++r) {
      if (r % kPage >= last - first) continue;
      const float* x = value(op, r < kPage ? op.a : op.b) + (first + r % kPage) * op.width + head * own;
      memcpy(padded + r * d, x, size_t(own) * 4);
      memset(padded + r * d + own, 0, size_t(d - own) * 4);
    }
    store_rows(op, batch, padded, padded + kPage * d, d, head, first, last);
  };
  const int64_t chunks = (tokens_.rows + kPage - 1) / kPage * v.kv_heads;
  if (chunks * 4 * kPage * d >= kParallelCost) return pool_.run(chunks, store_page);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) store_page(chunk, 0);
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
  if (tokens_.prompt < tokens_.rows) decode_attention(op, batch, nullptr);
}

// Whether the ops before attention compute each KV head, and its query heads, from the same heads of their inputs.
bool Program::can_split_by_head(const olv_op* ops, int64_t count) const {
  const olv_op& attention = ops[count - 1];
  for (int64_t i = 0; i + 1 < count; ++i) {
    const olv_op& op = ops[i];
    if (op.kind >= OLV_LAYER_NORM || op.kind == OLV_COLUMNS) return false;
    if (op.width % attention.kv_heads || op.width / attention.kv_heads % attention.head_dim) return false;
    if (op.kind == OLV_RMS_NORM && op.size != attention.head_dim) return false;
    if (op.kind == OLV_ROPE && op.head_dim != attention.head_dim) return false;
    if (op.kind == OLV_STORE_KV && op.cache != attention.cache) return false;
  }
  return true;
}

// Attention with the ops on rows before it: norms, rotary embeddings, and the store of keys and values.
void Program::attend_with(const olv_op* ops, int64_t count, const olv_batch& batch) {
  const olv_op& attention = ops[count - 1];
  for (int64_t i = 0; i < count; ++i)
    if (ops[i].kind == OLV_STORE_KV) clear_begun_pages(ops[i], batch);
  // Of rows of one sequence the later ones see the keys of the earlier, which have to be stored first.
  bool alone = tokens_.prompt == 0 && can_split_by_head(ops, count);
  for (int64_t r = 1; r < tokens_.rows && alone; ++r)
    for (int64_t s = 0; s < r; ++s) alone &= sequence_[size_t(s)] != sequence_[size_t(r)];
  const auto run_head = [&](int64_t r, int64_t head) {
    for (int64_t i = 0; i + 1 < count; ++i) {
      const int64_t width = ops[i].width / attention.kv_heads;
      if (ops[i].kind != OLV_STORE_KV) run_row(ops[i], r, head * width, width);
      else store_head(ops[i], batch, head, r, r + 1);
    }
  };
  if (alone) return decode_attention(attention, batch, run_head);
  const int64_t groups = (tokens_.rows + kPage - 1) / kPage;  // of rows: values of neighboring slots share cache lines
  matmul_.parallel_rows(groups, 4 * count * kPage * attention.width, [&](int64_t group) {
    const int64_t first = group * kPage, last = std::min(tokens_.rows, first + kPage);
    for (int64_t r = first; r < last; ++r)
      for (int64_t i = 0; i + 1 < count; ++i)
        if (ops[i].kind != OLV_STORE_KV) run_row(ops[i], r, 0, ops[i].width);
    for (int64_t i = 0; i + 1 < count; ++i)
      for (int64_t head = 0; head < attention.kv_heads && ops[i].kind == OLV_STORE_KV; ++head)
        store_head(ops[i], batch, head, first, last);
  });
  attend(attention, batch);
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
  // Whole tiles are packed for the linear op after attention at once.
  const int64_t columns = int64_t(q_per_kv) * op.head_dim;
  const olv_weight* next = only_weight_of(&op + 1, op, value(op, op.out));
  bool packs = next && columns % 32 == 0;
  for (const QueryTile& tile : tiles_)
    packs &= tile.first % 16 == 0 && (tile.rows % 16 == 0 || tile.first + tile.rows == tokens_.prompt);
  packs = packs && matmul_.begin_packing(value(op, op.out), tokens_.prompt, *next);
  pool_.run(int64_t(tiles_.size()) * op.kv_heads, [&](int64_t chunk, int thread) {
    // Head by head: the threads then read the same keys and values, which stay in their L2 caches. Of a head, the tile with
    // the most keys is followed by that with the fewest, and so on: the shares of threads are about equal.
    const size_t at = size_t(chunk) % tiles_.size();
    const QueryTile& tile = tiles_[at % 2 ? at / 2 : tiles_.size() - 1 - at / 2];
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
    if (packs) matmul_.pack(tile.first, tile.rows, task.kv_head * columns, (task.kv_head + 1) * columns);
  });
}

// `before(row, KV head)`, unless null, computes the queries of a head, and stores its key and value.
template <class F>
void Program::decode_attention(const olv_op& op, const olv_batch& batch, F before) {
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
  const auto merge = [&](int64_t chunk) {
    const int64_t r = chunk / op.kv_heads, kv_head = chunk % op.kv_heads;
    const int64_t first = split_begin_[size_t(r)], last = split_begin_[size_t(r) + 1];
    float* result = memory + (first * op.kv_heads + kv_head) * per_split;
    for (int64_t h = 0; h < q_per_kv; ++h) {
      const SplitResult head{result + h * d, result + q_per_kv * d + h, result + q_per_kv * d + q_per_kv + h};
      float* y = value(op, op.out) + (tokens_.prompt + r) * op.width + (kv_head * q_per_kv + h) * d;
      kernels_.merge_splits(head, op.kv_heads * per_split, last - first, d, y);
    }
  };
  if (splits_left_size_ < rows * op.kv_heads) {
    splits_left_size_ = rows * op.kv_heads;
    splits_left_.reset(new std::atomic<int32_t>[size_t(splits_left_size_)]);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < op.kv_heads; ++h)
      splits_left_[size_t(r * op.kv_heads + h)].store(int32_t(split_begin_[size_t(r) + 1] - split_begin_[size_t(r)]),
                                                      std::memory_order_relaxed);
  const bool single = int64_t(splits_.size()) == rows;  // one split a row: a single loop does all
  if constexpr (!std::is_null_pointer_v<F>)
    if (!single)
      pool_.run(rows * op.kv_heads,
                [&](int64_t chunk, int) { before(tokens_.prompt + chunk / op.kv_heads, chunk % op.kv_heads); });
  pool_.run(int64_t(splits_.size()) * op.kv_heads, [&](int64_t chunk, int thread) {
    const KvSplit& split = splits_[size_t(chunk / op.kv_heads)];
    float* result = memory + chunk * per_split;
    if constexpr (!std::is_null_pointer_v<F>)
      if (single) before(split.row, chunk % op.kv_heads);
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
    // The thread that ends the last split of a head merges them.
    const int64_t head = (split.row - tokens_.prompt) * op.kv_heads + chunk % op.kv_heads;
    if (splits_left_[size_t(head)].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(head);
  });
}

}  // namespace olv
