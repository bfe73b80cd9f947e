#include "program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "blocks.h"

namespace olv {
namespace {

constexpr int64_t kPiece = 8192;  // columns of a wide row per task

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// Zeroed memory, committed when it is first touched.
void* zeroed_pages(size_t bytes) {
#if defined(__linux__)
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return p;
#else
  void* p = calloc(1, bytes);
  if (!p) throw std::bad_alloc();
  return p;
#endif
}

void free_pages(void* p, size_t bytes) {
#if defined(__linux__)
  munmap(p, bytes);
#else
  (void)bytes;
  free(p);
#endif
}

}  // namespace

Program::Program(Pool& pool, const olv_plan& plan)
    : pool_(pool),
      kernels_(kernels()),
      ops_(plan.ops, plan.ops + plan.op_count),
      weights_(plan.weights, plan.weights + plan.weight_count),
      frequencies_(plan.frequencies, plan.frequencies + plan.frequency_start[plan.table_count]),
      frequency_start_(plan.frequency_start, plan.frequency_start + plan.table_count + 1),
      magnitudes_(plan.magnitudes, plan.magnitudes + plan.table_count),
      axes_(plan.axes, plan.axes + plan.table_count),
      group_pages_(plan.group_pages, plan.group_pages + plan.group_count),
      plan_(plan),
      matmul_(pool, kernels_),
      dequantized_(size_t(pool.threads())),
      dequantized_memory_(size_t(pool.threads())) {
  require(plan.page_size == kPage, "the CPU backend needs pages of 32 tokens");
  for (const olv_weight& w : weights_) {
    require(w.type >= 0 && w.type < OLV_TYPES && w.n > 0 && w.k > 0, "a weight of unknown type or of size 0");
    require(w.k % kTypes[w.type].block == 0, "a weight whose rows are not a whole number of blocks");
    require(w.type != OLV_GROUPED || (w.group > 0 && w.k % w.group == 0), "a group size that does not divide a row");
    require(w.k <= kLongestRow, "a weight with rows of more than 65472 elements");
  }
  factors_.resize(ops_.size());
  biases_.resize(ops_.size());
  for (size_t i = 0; i < ops_.size(); ++i) {
    const olv_op& op = ops_[i];
    const bool is_hidden = op.outputs && op.out == plan.hidden && op.width == plan.hidden_width;
    if (is_hidden || op.kind == OLV_STORE_KV || op.kind == OLV_SEND) hidden_end_ = i + 1;
    if (op.kind >= OLV_ALL_REDUCE && op.kind <= OLV_RECEIVE)
      require(plan.meet || plan.shm, "a part of a plan without other ranks");
    if (op.kind == OLV_RMS_NORM) {
      factors_[i] = floats(op.weight, op.size);
      for (float& v : factors_[i]) v += op.offset;
    }
    if (op.kind == OLV_SCALE) {
      factors_[i] = floats(op.weight, op.width);
      for (float& v : factors_[i]) v *= op.scale;
    }
    if (op.kind == OLV_MOE) factors_[i] = floats(op.bias, op.size);
    if (op.kind == OLV_LINEAR && op.bias >= 0) biases_[i] = floats(op.bias, op.width);
    if (op.kind == OLV_ROPE) {
      require(op.table >= 0 && op.table < plan.table_count, "a rotary embedding without frequencies");
      const int64_t pairs = frequency_start_[size_t(op.table) + 1] - frequency_start_[size_t(op.table)];
      require(op.head_dim > 0 && 2 * pairs <= op.head_dim && op.width % op.head_dim == 0 && !op.outputs,
              "a rotary embedding whose head size differs from its op's");
    }
    if (op.kind >= OLV_LAYER_NORM) prepare_tower(i);
    if (op.kind == OLV_POSITION_SCALE) require(op.size > 0 && !op.outputs, "a scale by position without positions");
    if (op.kind == OLV_COLUMNS) require(op.start >= 0 && op.start + op.width <= op.a_width, "columns outside of the value");
    if (op.kind == OLV_EMBED) {
      const int64_t rows = weights_.at(size_t(op.weight)).n;
      require(op.start >= 0 && op.start + rows <= op.size, "a part of an embedding table outside of it");
      vocabulary_ = std::min<int64_t>(vocabulary_, op.size);
      require(op.pad < vocabulary_, "an embedding table without the padding token");
    }
  }
  next_linear_.resize(ops_.size());
  size_t last = ops_.size(), start = ops_.size();
  for (size_t i = 0; i < ops_.size(); i += ops_[i].kind == OLV_LINEAR ? size_t(ops_[i].count) : 1) {
    if (ops_[i].kind != OLV_LINEAR) continue;
    require(ops_[i].count > 0 && i + size_t(ops_[i].count) <= ops_.size(), "more linear ops with one input than ops");
    if (last < ops_.size()) next_linear_[last] = i;
    else start = i;
    last = i;
  }
  if (last < ops_.size()) next_linear_[last] = start;  // of the next step
  for (int64_t c = 0; c < plan.cache_count; ++c) {
    const int group = plan.cache_group[c], kv_heads = plan.cache_kv_heads[c], head_dim = plan.cache_head_dim[c];
    require(group >= 0 && group < plan.group_count, "a cache without a cache group");
    require(head_dim > 0 && head_dim <= kLongestHead, "heads of more than 1024 columns");
    const int type = plan.cache_type;
    require(type == OLV_BF16 || type == OLV_F32 || type == OLV_Q8_0, "a cache type other than BF16, F32 and Q8_0");
    require(type != OLV_Q8_0 || head_dim % 32 == 0, "a Q8_0 cache needs a head size that is a multiple of 32");
    const int64_t page_bytes = kPage * head_dim * (type == OLV_F32 ? 4 : type == OLV_BF16 ? 2 : 1) +
                               (type == OLV_Q8_0 ? kPage * (head_dim / 32) * 4 : 0);
    const size_t bytes = size_t(group_pages_[size_t(group)]) * size_t(kv_heads) * size_t(page_bytes);
    CacheView view{type, nullptr, nullptr, kv_heads, head_dim, page_bytes};
    view.keys = static_cast<uint8_t*>(zeroed_pages(std::max<size_t>(bytes, 1)));
    view.values = static_cast<uint8_t*>(zeroed_pages(std::max<size_t>(bytes, 1)));
    caches_.push_back({view, group, std::max<size_t>(bytes, 1)});
  }
  cos_.resize(size_t(plan.table_count));
  sin_.resize(size_t(plan.table_count));
  warm_up_ = std::thread([this] { touch_first_pages(); });
}

std::vector<float> Program::floats(int32_t index, int64_t size) const {
  std::vector<float> values(size_t(size), 1.f);
  if (index < 0) return values;
  const olv_weight& w = weights_.at(size_t(index));
  require(w.n == 1 && (w.k == size || w.k == 1), "a vector weight whose size differs from its op's");
  kernels_.dequantize(w, 0, values.data());
  if (w.k == 1) std::fill(values.begin(), values.end(), values[0]);
  return values;
}

// Memory is committed when it is first touched, which takes half as long as the first step: so a thread touches the first
// page of every cache while the caller still builds its tokenizer.
void Program::touch_first_pages() {
  for (const Cache& c : caches_) {
    const int64_t bytes = std::min<int64_t>(int64_t(c.bytes), c.view.kv_heads * c.view.page_bytes);
    for (int64_t at = 0; at < bytes; at += 4096) {
      *static_cast<volatile uint8_t*>(c.view.keys + at) = 0;
      *static_cast<volatile uint8_t*>(c.view.values + at) = 0;
    }
  }
}

Program::~Program() {
  if (warm_up_.joinable()) warm_up_.join();
  for (Cache& c : caches_) {
    free_pages(c.view.keys, c.bytes);
    free_pages(c.view.values, c.bytes);
  }
}

void Program::step(const olv_batch& batch, float* hidden, float* logits) {
  if (warm_up_.joinable()) warm_up_.join();
  order_rows(batch);
  token_arena_ = token_memory_.array<float>(plan_.token_width * std::max<int64_t>(tokens_.rows, 1));
  output_arena_ = output_memory_.array<float>(plan_.output_width * std::max<int64_t>(outputs_.rows, 1));
  update_rotary_tables();
  auto before = std::chrono::steady_clock::now();
  const size_t end = hidden && !logits ? hidden_end_ : ops_.size();  // skips the LM head, often a quarter of a model
  for (size_t i = 0; i < end;) {
    i = run_group(i, end, batch);
    const auto now = std::chrono::steady_clock::now();
    seconds_[ops_[i - 1].count ? ops_[i - 1].kind : OLV_LINEAR] += std::chrono::duration<double>(now - before).count();
    before = now;
  }
  const auto copy_out = [&](float* to, int64_t offset, int64_t width) {
    if (!to || !width) return;  // a rank may have none
    const int64_t pieces = (width + kPiece - 1) / kPiece;
    matmul_.parallel_rows(outputs_.rows * pieces, kPiece, [&](int64_t piece) {
      const int64_t r = piece / pieces, start = piece % pieces * kPiece, count = std::min(kPiece, width - start);
      memcpy(to + outputs_.source[size_t(r)] * width + start, output_arena_ + offset * outputs_.rows + r * width + start,
             size_t(count) * 4);
    });
  };
  copy_out(hidden, plan_.hidden, plan_.hidden_width);
  copy_out(logits, plan_.logits, plan_.logits_width);
}

void Program::generate(const olv_batch& batch, const olv_draw* draws, int64_t n, const olv_drawn& out, olv_ready ready) {
  require(n >= 1, "at least one token is drawn");
  const size_t wanted = size_t(batch.outputs);
  samplers_.resize(size_t(pool_.threads()));
  for (Sampler& sampler : samplers_) sampler.prepare(kernels_.sample_loops(), plan_.logits_width);
  if (histories_.size() < wanted) histories_.resize(wanted);
  for (auto* list : {&next_row_, &next_token_, &next_sequence_, &next_position_, &next_output_}) list->resize(wanted);
  next_generated_.assign(wanted, 1);
  for (size_t r = 0; r < wanted; ++r) {
    histories_[r].begin(draws[r], plan_.logits_width, out.tokens + int64_t(r) * n, n);
    next_row_[r] = next_output_[r] = int32_t(r);
    next_sequence_[r] = batch.sequence[batch.output_rows[r]];
    next_position_[r] = batch.position[batch.output_rows[r]];
    out.counts[r] = 0;
  }
  olv_batch now = batch;
  for (int64_t made = 1;; ++made) {
    step(now, nullptr, nullptr);
    if (made == 1 && ready) ready();
    pool_.run(now.outputs, [&](int64_t output, int thread) { draw(output, thread, draws, n, out); });
    if (made == n) return;
    size_t left = 0;
    for (size_t i = 0; i < size_t(now.outputs); ++i) {
      const int32_t row = next_row_[i];
      if (out.ends[row] != OLV_OPEN) continue;
      const int32_t token = out.tokens[row * n + out.counts[row] - 1];
      if (token >= vocabulary_) continue;  // a token without an embedding: the sequence ends
      next_row_[left] = row;
      next_token_[left] = token;
      next_sequence_[left] = next_sequence_[i];
      next_position_[left++] = next_position_[i] + 1;
    }
    if (!left) return;
    now.rows = now.outputs = int64_t(left);
    now.tokens = next_token_.data();
    now.sequence = next_sequence_.data();
    now.position = next_position_.data();
    now.last = nullptr;
    now.generated = next_generated_.data();
    now.output_rows = next_output_.data();
    now.embeddings = 0;
  }
}

// Draws the next token of row `output` of the output arena.
void Program::draw(int64_t output, int thread, const olv_draw* draws, int64_t n, const olv_drawn& out) {
  const size_t i = size_t(outputs_.source[size_t(output)]), row = size_t(next_row_[i]);
  if (out.ends[row] != OLV_OPEN) return;
  const int64_t made = out.counts[row], at = int64_t(row) * n + made;
  float* logits = output_arena_ + plan_.logits * outputs_.rows + output * plan_.logits_width;
  const Report report{out.logprobs + at, out.top_tokens + at * out.top, out.top_logprobs + at * out.top};
  const olv_end end = samplers_[size_t(thread)].draw(logits, plan_.logits_width, draws[row], histories_[row], made,
                                                     uint32_t(next_position_[i]) + 1, out.tokens + at, report);
  out.ends[row] = uint8_t(end);
  if (end != OLV_OPEN) return;
  ++out.counts[row];
  histories_[row].add(out.tokens[at]);
}

bool Program::one_kind() const {
  if (!kernels_.one_kind || plan_.meet) return false;  // another rank may have another instruction set
  const auto all_codes = [&](int64_t first, int64_t count) {
    return std::all_of(weights_.begin() + first, weights_.begin() + first + count, kernels_.takes_codes);
  };
  for (size_t i = 0; i < hidden_end_; ++i) {
    const olv_op& op = ops_[i];
    if (op.kind == OLV_LINEAR && !all_codes(op.weight, 1)) return false;
    if (op.kind != OLV_MOE) continue;
    for (const int64_t first : {op.weight, op.up, op.down})
      if (!all_codes(first, op.size)) return false;
  }
  return true;
}

void Program::profile(double* seconds) {
  std::copy(seconds_, seconds_ + OLV_KINDS, seconds);
  std::fill(seconds_, seconds_ + OLV_KINDS, 0.0);
}

void Program::order_rows(const olv_batch& batch) {
  const auto is_generated = [&](int32_t row) { return batch.generated && batch.generated[row]; };
  tokens_.rows = batch.rows;
  tokens_.source.clear();
  arena_row_.resize(size_t(batch.rows));
  for (int kind = 0; kind < 2; ++kind) {
    for (int32_t r = 0; r < batch.rows; ++r)
      if (is_generated(r) == bool(kind)) tokens_.source.push_back(r);
    if (!kind) tokens_.prompt = int64_t(tokens_.source.size());
  }
  // Prompt rows are sorted by sequence and position: attention takes them in tiles.
  // (std::sort, because std::stable_sort allocates.)
  std::sort(tokens_.source.begin(), tokens_.source.begin() + tokens_.prompt, [&](int32_t a, int32_t b) {
    if (batch.sequence[a] != batch.sequence[b]) return batch.sequence[a] < batch.sequence[b];
    return batch.position[a] != batch.position[b] ? batch.position[a] < batch.position[b] : a < b;
  });
  token_.resize(size_t(batch.rows));
  sequence_.resize(size_t(batch.rows));
  position_.resize(size_t(batch.rows));
  last_.resize(size_t(batch.rows));
  for (int64_t i = 0; i < batch.rows; ++i) {
    const int32_t r = tokens_.source[size_t(i)];
    arena_row_[size_t(r)] = int32_t(i);
    token_[size_t(i)] = batch.tokens[r];
    sequence_[size_t(i)] = batch.sequence[r];
    position_[size_t(i)] = batch.position[r];
    last_[size_t(i)] = batch.last ? batch.last[r] : batch.position[r];
    for (int axis = 0; axis < 2 && batch.coordinates; ++axis) {
      coordinate_[axis].resize(size_t(batch.rows));
      coordinate_[axis][size_t(i)] = batch.coordinates[2 * r + axis];
    }
  }
  outputs_.rows = batch.outputs;
  outputs_.source.clear();
  for (int kind = 0; kind < 2; ++kind) {
    for (int32_t o = 0; o < batch.outputs; ++o)
      if (is_generated(batch.output_rows[o]) == bool(kind)) outputs_.source.push_back(o);
    if (!kind) outputs_.prompt = int64_t(outputs_.source.size());
  }
  output_token_row_.resize(size_t(batch.outputs));
  for (int64_t i = 0; i < batch.outputs; ++i)
    output_token_row_[size_t(i)] = arena_row_[size_t(batch.output_rows[outputs_.source[size_t(i)]])];
}

// Cosines and sines for every row's position or coordinate, once a step for all layers.
void Program::update_rotary_tables() {
  for (size_t t = 0; t < cos_.size(); ++t) {
    const float* frequency = frequencies_.data() + frequency_start_[t];
    const int64_t half = frequency_start_[t + 1] - frequency_start_[t];
    const std::vector<int32_t>& at = axes_[t] < 0 ? position_ : coordinate_[axes_[t]];
    cos_[t].resize(size_t(half * tokens_.rows));
    sin_[t].resize(size_t(half * tokens_.rows));
    matmul_.parallel_rows(tokens_.rows, 16 * half, [&](int64_t r) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = float(at[size_t(r)]) * frequency[i];
        cos_[t][size_t(r * half + i)] = std::cos(angle) * magnitudes_[t];
        sin_[t][size_t(r * half + i)] = std::sin(angle) * magnitudes_[t];
      }
    });
  }
}

// Ops that run together, from `first` on: linear ops with one input, with the clamps and the gate after them; ops on single
// rows, with the linear ops or the attention after them. One parallel loop over rows runs all ops of a row, and packs it.
size_t Program::run_group(size_t first, size_t end, const olv_batch& batch) {
  const olv_op* op = &ops_[first];
  if (op->kind == OLV_LINEAR) {
    linear(op);
    return linear_end(op);
  }
  if (!is_row_op(*op)) {
    run(*op, batch);
    return first + 1;
  }
  const int64_t count = op->count;
  const olv_op* next = op + count;
  if (next[-1].kind == OLV_ATTENTION) {
    attend_with(op, count, batch);
  } else if (first + size_t(count) < end && next->kind == OLV_LINEAR && next->outputs == op->outputs) {
    linear(next, op, count);
    return linear_end(next);
  } else {
    matmul_.parallel_rows(order(*op).rows, 4 * count * op->width, [&](int64_t r) {
      for (int64_t i = 0; i < count; ++i) run_row(op[i], r, 0, op[i].width);
    });
  }
  return first + size_t(count);
}

bool Program::is_row_op(const olv_op& op) const {
  switch (op.kind) {
    case OLV_RMS_NORM:
    case OLV_ROPE:
    case OLV_ADD:
    case OLV_SCALE:
    case OLV_POSITION_SCALE:
    case OLV_GATE:
    case OLV_COLUMNS:
    case OLV_LAYER_NORM:
    case OLV_ACTIVATE:
    case OLV_CLAMP:
    case OLV_STANDARDIZE:
    case OLV_POSITION_EMBED:
    case OLV_GRID_ROPE:
      return true;
    default:
      return false;
  }
}

// Columns [column, column + width) of a row; of ops that no attention is grouped with, the whole row.
void Program::run_row(const olv_op& op, int64_t row, int64_t column, int64_t width) {
  const int64_t at = row * op.width + column;
  const float *a = value(op, op.a) + at, *b = value(op, op.b) + at;
  const float* factor = factors_[size_t(&op - ops_.data())].data();
  float* y = value(op, op.out) + at;
  switch (op.kind) {
    case OLV_RMS_NORM:
      return kernels_.rms_norm(a, factor, y, width, op.size, op.eps);
    case OLV_ROPE: {
      const size_t table = size_t(op.table);
      const int64_t half = frequency_start_[table + 1] - frequency_start_[table];
      return kernels_.rope(a, cos_[table].data() + row * half, sin_[table].data() + row * half, y, width, op.head_dim, half,
                           op.interleaved);
    }
    case OLV_GATE:
      if (op.activation > OLV_GELU_TANH) return run_tower_row(op, row);
      return kernels_.gate(a, b, y, width, op.activation);
    case OLV_ADD:
      return kernels_.add(a, b, y, width);
    case OLV_SCALE:
      for (int64_t i = 0; i < width; ++i) y[i] = a[i] * factor[column + i];
      return;
    case OLV_POSITION_SCALE: {
      const float scale = 1 + op.scale * std::log1p(float(position_[size_t(row)] / op.size));
      for (int64_t i = 0; i < width; ++i) y[i] = a[i] * scale;
      return;
    }
    case OLV_COLUMNS:
      memcpy(y, value(op, op.a) + row * op.a_width + op.start, size_t(op.width) * 4);
      return;
    default:
      return run_tower_row(op, row);
  }
}

void Program::run(const olv_op& op, const olv_batch& batch) {
  const int64_t rows = order(op).rows;
  switch (op.kind) {
    case OLV_EMBED:
      return embed(op, batch);
    case OLV_STORE_KV:
      return store(op, batch);
    case OLV_ATTENTION:
      return attend(op, batch);
    case OLV_MOE:
      return moe(op);
    case OLV_TAKE_OUTPUTS:
      for (int64_t r = 0; r < rows; ++r)
        memcpy(output_arena_ + op.out * rows + r * op.width,
               token_arena_ + op.a * tokens_.rows + output_token_row_[size_t(r)] * op.width, size_t(op.width) * 4);
      return;
    case OLV_SOFTCAP:
      // Rows are split, because there is often only one, as wide as the vocabulary.
      return matmul_.parallel_rows(rows * ((op.width + kPiece - 1) / kPiece), 16 * kPiece, [&](int64_t piece) {
        const int64_t pieces = (op.width + kPiece - 1) / kPiece, start = piece % pieces * kPiece;
        const int64_t at = piece / pieces * op.width + start;
        kernels_.softcap(value(op, op.a) + at, value(op, op.out) + at, std::min(kPiece, op.width - start), op.scale);
      });
    case OLV_ALL_REDUCE:
    case OLV_ALL_GATHER:
    case OLV_SEND:
    case OLV_RECEIVE: {
      if (!rows) return;
      const float* x = op.kind == OLV_RECEIVE ? nullptr : value(op, op.a);
      float* out = op.kind == OLV_SEND ? nullptr : value(op, op.out);
      if (plan_.shm ? olv_shm_meet(plan_.shm, op.kind, x, op.a_width, out, op.width, rows)
                     : plan_.meet(&op - ops_.data(), x, op.a_width, out, op.width, rows))
        throw std::runtime_error(plan_.shm ? olv_last_error() : "another rank failed");
      return;
    }
    default:
      if (!run_tower(op, batch)) throw std::invalid_argument("an op that the CPU backend does not have");
  }
}

void Program::embed(const olv_op& op, const olv_batch& batch) {
  const olv_weight& table = weights_[size_t(op.weight)];
  float* out = value(op, op.out);
  const auto embed_row = [&](int64_t r, int64_t token) {
    float* y = out + r * op.width;
    const int64_t row = token - op.start;
    if (row < 0 || row >= table.n) return std::fill(y, y + op.width, 0.f);  // another rank's
    kernels_.dequantize(table, row, y);
    for (int64_t i = 0; i < op.width; ++i) y[i] *= op.scale;
  };
  matmul_.parallel_rows(tokens_.rows, 4 * op.width, [&](int64_t r) { embed_row(r, token_[size_t(r)]); });
  for (int64_t m = 0; m < batch.embeddings; ++m) {
    const int64_t r = arena_row_[size_t(batch.embedding_rows[m])];
    if (op.pad >= 0) embed_row(r, op.pad);
    else if (op.start) std::fill(out + r * op.width, out + (r + 1) * op.width, 0.f);  // the first rank's
    else memcpy(out + r * op.width, batch.embedding + m * op.width, size_t(op.width) * 4);
  }
}

// The op after the linear ops from `op` on, the clamps of their results, their gate or activation, and
// its clamp: those with the count 0.
size_t Program::linear_end(const olv_op* op) const {
  size_t end = size_t(op - ops_.data()) + size_t(op->count);
  while (end < ops_.size() && ops_[end].count == 0) ++end;
  return end;
}

// The weight of the linear op at `next`, if it is one alone and x, of the rows of `op`, is its input.
const olv_weight* Program::only_weight_of(const olv_op* next, const olv_op& op, const float* x) const {
  if (next == ops_.data() + ops_.size() || next->kind != OLV_LINEAR || next->count != 1) return nullptr;
  return next->outputs == op.outputs && value(*next, next->a) == x ? &weights_[size_t(next->weight)] : nullptr;
}

// Linear ops with the input of `op`, and with `count` ops on rows before them.
void Program::linear(const olv_op* op, const olv_op* before, int64_t count) {
  const RowOrder& rows = order(*op);
  if (!rows.rows) return;
  products_.clear();
  for (int64_t i = 0; i < op->count; ++i) {
    const olv_weight& w = weights_[size_t(op[i].weight)];
    const std::vector<float>& bias = biases_[size_t(op + i - ops_.data())];
    products_.push_back({&w, value(op[i], op[i].out), op[i].width, bias.empty() ? nullptr : bias.data()});
  }
  Job job{products_.data(), op->count, value(*op, op->a), rows.prompt, rows.rows - rows.prompt};
  const olv_op *end = ops_.data() + linear_end(op), *gate = nullptr;
  for (const olv_op* after = op + op->count; after < end; ++after) {
    if (after->kind == OLV_GATE || after->kind == OLV_ACTIVATE) {
      gate = after;
      job.gated = value(*after, after->out);
      job.activation = after->activation;
      job.ones = after->kind == OLV_ACTIVATE ? ones_.data() : nullptr;
      job.passing = after->passing;
      continue;
    }
    require(rows.prompt == rows.rows, "a linear op with limits has generated rows");
    if (gate && after->a == gate->out) {
      job.gated = value(*after, after->out);
      job.low = after->scale;
      job.high = after->offset;
      continue;
    }
    for (int64_t i = 0; i < op->count; ++i) {
      if (op[i].out != after->a) continue;
      products_[size_t(i)].y = value(*after, after->out);
      products_[size_t(i)].low = after->scale;
      products_[size_t(i)].high = after->offset;
    }
  }
  if (job.gated) job.next = only_weight_of(end, *op, job.gated);
  RowsBefore rows_before;
  const auto run_rows = [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t i = 0; i < count; ++i) run_row(before[i], r, 0, before[i].width);
  };
  if (before) {
    using Body = decltype(run_rows);
    rows_before = {[](const void* body, int64_t first, int64_t last) { (*static_cast<const Body*>(body))(first, last); },
                   &run_rows, 4 * count * before->width};
  }
  if (rows.prompt < rows.rows) read_ahead(next_linear_[size_t(op - ops_.data())]);
  matmul_.multiply(job, rows_before);
  for (int64_t i = 0; i < op->count; ++i) {
    const std::vector<float>& bias = biases_[size_t(op + i - ops_.data())];
    if (!bias.empty())
      matmul_.parallel_rows(rows.rows - rows.prompt, op[i].width, [&](int64_t r) {
        float* y = value(op[i], op[i].out) + (rows.prompt + r) * op[i].width;
        kernels_.add(y, bias.data(), y, op[i].width);
      });
  }
}

// The weights of the linear ops from `op` on are what is read next.
void Program::read_ahead(size_t op) {
  Bytes weights[Pool::kAhead];
  int count = 0;
  for (; count < Pool::kAhead && count < ops_[op].count; ++count) {
    const olv_weight& w = weights_[size_t(ops_[op + size_t(count)].weight)];
    weights[count] = {w.data, w.n * row_bytes(w)};
  }
  pool_.read_ahead(weights, count);
}

}  // namespace olv
