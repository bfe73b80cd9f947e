// The ops of a program that know the KV cache: writing to it, and attention.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace olv {

void Program::store(const olv_op& op, const olv_batch& batch) {
  const Cache& cache = caches_[size_t(op.cache)];
  const CacheView& v = cache.view;
  const int64_t d = v.head_dim, width = v.kv_heads * d;
  const int32_t* table = batch.tables[cache.group];
  const int64_t pages = batch.table_pages[cache.group];
  // A page is attended to as a whole, with no weight for slots that are not filled yet. What an earlier sequence left there
  // must not be NaN, which no weight makes harmless: pages that are begun and not filled are cleared.
  for (int64_t r = 0; r < tokens_.rows; ++r) {
    const int64_t sequence = sequence_[size_t(r)], position = position_[size_t(r)];
    if (position % kPage) continue;
    const int64_t end = r + kPage - 1;
    if (end < tokens_.rows && sequence_[size_t(end)] == sequence && position_[size_t(end)] == position + kPage - 1) continue;
    const int64_t bytes = v.kv_heads * v.page_bytes, at = table[sequence * pages + position / kPage] * bytes;
    memset(v.keys + at, 0, size_t(bytes));
    memset(v.values + at, 0, size_t(bytes));
  }
  // Rows of a page share cache lines (values lie slot beside slot), so a page's rows go to one thread, a head each.
  const int64_t groups = (tokens_.rows + kPage - 1) / kPage;
  multiplier_.over_rows(groups * v.kv_heads, 4 * kPage * d, [&](int64_t chunk) {
    const int64_t h = chunk % v.kv_heads, first = chunk / v.kv_heads * kPage;
    const int64_t last = std::min(tokens_.rows, first + kPage);
    for (int64_t r = first; r < last;) {
      const int64_t sequence = sequence_[size_t(r)], position = position_[size_t(r)], slot = position % kPage;
      int64_t count = 1;  // rows that follow each other in one page
      while (r + count < last && slot + count < kPage && sequence_[size_t(r + count)] == sequence &&
             position_[size_t(r + count)] == position + count)
        ++count;
      const int64_t page = table[sequence * pages + position / kPage], at = r * width + h * d;
      kernels_.store_kv(v, page, h, slot, count, value(op, op.a) + at, value(op, op.b) + at, width);
      r += count;
    }
  });
}

// Room for a thread to convert pages in, with nothing in it yet.
ConvertedPages* Program::converted(const CacheView& cache, int thread) {
  if (cache.type != OLV_Q8_0) return nullptr;
  ConvertedPages& pages = converted_[size_t(thread)];
  pages.memory = converted_memory_[size_t(thread)].of<uint16_t>(2 * kConverted * kPage * cache.head_dim);
  std::fill(&pages.holds[0][0], &pages.holds[0][0] + 2 * kConverted, -1);
  return &pages;
}

void Program::attend(const olv_op& op, const olv_batch& batch) {
  if (tokens_.prompt > 0) attend_prompts(op, batch);
  if (tokens_.prompt < tokens_.rows) attend_generated(op, batch);
}

void Program::attend_prompts(const olv_op& op, const olv_batch& batch) {
  const Cache& cache = caches_[size_t(op.cache)];
  const int share = op.heads / op.kv_heads;
  // Tiles of rows of one sequence. They begin at the rows' own positions: a tile's make-up never changes a result.
  tiles_.clear();
  const int64_t tall = std::max(1, 32 / share);
  for (int64_t r = 0; r < tokens_.prompt;) {
    int64_t end = r + 1;
    while (end < tokens_.prompt && end - r < tall && sequence_[size_t(end)] == sequence_[size_t(r)]) ++end;
    tiles_.push_back({r, int(end - r)});
    r = end;
  }
  pool_.run(int64_t(tiles_.size()) * op.kv_heads, [&](int64_t chunk, int thread) {
    // The longest tiles come first, so that none is left for last.
    const Tile& tile = tiles_[tiles_.size() - 1 - size_t(chunk / op.kv_heads)];
    const int64_t sequence = sequence_[size_t(tile.first)];
    AttentionTask task{};
    task.cache = &cache.view;
    task.converted = converted(cache.view, thread);
    task.table = batch.tables[cache.group] + sequence * batch.table_pages[cache.group];
    task.q = value(op, op.a) + tile.first * op.width;
    task.out = value(op, op.out) + tile.first * op.width;
    task.stride = op.width;
    task.position = position_.data() + tile.first;
    task.rows = tile.rows;
    task.kv_head = int(chunk % op.kv_heads);
    task.share = share;
    task.scale = op.scale;
    task.window = op.window;
    kernels_.attend_prompt(task, multiplier_.scratch(thread));
  });
}

void Program::attend_generated(const olv_op& op, const olv_batch& batch) {
  const Cache& cache = caches_[size_t(op.cache)];
  const int share = op.heads / op.kv_heads;
  const int64_t d = op.head_dim, rows = tokens_.rows - tokens_.prompt;
  // Keys are split at fixed places, so neither threads nor other rows change what is added to what.
  parts_.clear();
  part_begin_.resize(size_t(rows) + 1);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = position_[size_t(tokens_.prompt + r)];
    const int64_t from = op.window ? std::max<int64_t>(0, position - op.window + 1) : 0;
    part_begin_[size_t(r)] = int64_t(parts_.size());
    for (int64_t start = from / kSplit * kSplit; start <= position; start += kSplit)
      parts_.push_back({tokens_.prompt + r, std::max(start, from), std::min(start + kSplit, position + 1)});
  }
  part_begin_[size_t(rows)] = int64_t(parts_.size());
  const int64_t per_part = share * (d + 2);
  float* memory = partial_memory_.of<float>(int64_t(parts_.size()) * op.kv_heads * per_part);
  pool_.run(int64_t(parts_.size()) * op.kv_heads, [&](int64_t chunk, int thread) {
    const Part& part = parts_[size_t(chunk / op.kv_heads)];
    float* place = memory + chunk * per_part;
    AttentionTask task{};
    task.cache = &cache.view;
    task.converted = converted(cache.view, thread);
    task.table = batch.tables[cache.group] + sequence_[size_t(part.row)] * batch.table_pages[cache.group];
    task.q = value(op, op.a) + part.row * op.width;
    task.position = position_.data() + part.row;
    task.rows = 1;
    task.kv_head = int(chunk % op.kv_heads);
    task.share = share;
    task.scale = op.scale;
    task.window = op.window;
    kernels_.attend_part(task, part.first, part.last, {place, place + share * d, place + share * d + share});
  });
  multiplier_.over_rows(rows * op.kv_heads, 8 * share * d, [&](int64_t chunk) {
    const int64_t r = chunk / op.kv_heads, kv_head = chunk % op.kv_heads;
    const int64_t first = part_begin_[size_t(r)], last = part_begin_[size_t(r) + 1];
    const auto place = [&](int64_t part) { return memory + (part * op.kv_heads + kv_head) * per_part; };
    for (int64_t h = 0; h < share; ++h) {
      float* y = value(op, op.out) + (tokens_.prompt + r) * op.width + (kv_head * share + h) * d;
      float peak = -1e30f, total = 0;
      for (int64_t p = first; p < last; ++p) peak = std::max(peak, place(p)[share * d + h]);
      std::fill(y, y + d, 0.f);
      for (int64_t p = first; p < last; ++p) {
        const float weight = std::exp(place(p)[share * d + h] - peak);
        total += weight * place(p)[share * d + share + h];
        for (int64_t i = 0; i < d; ++i) y[i] += weight * place(p)[h * d + i];
      }
      const float part = 1 / total;
      for (int64_t i = 0; i < d; ++i) y[i] *= part;
    }
  });
}

}  // namespace olv
