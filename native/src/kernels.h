// The kernel table: each instruction set fills one, and isa.cpp chooses among them.
#pragma once
#include "olivine.h"
#include "quantize.h"
#include "sample_loops.h"

namespace olv {

// Rows of activations, prepared for linear ops. Generated rows are quantized to int8 in groups of 16, for GEMV; prompt
// rows are packed into panels of 16 rows, for GEMM. Which of the two a row takes depends on its kind alone. Where
// `takes_codes` says so, prompt rows are quantized as well.
struct Activations {
  int64_t count = 0, k = 0;
  const float* values = nullptr;  // [count, k]
  int8_t* code = nullptr;         // [count, super_blocks · 256]
  float* scale = nullptr;         // [count, super_blocks · 16]
  float* sum = nullptr;           // [count, super_blocks · 16]: scale · Σ code
  void* panel = nullptr;          // [⌈count / 16⌉, ⌈k / 32⌉] tiles of 32 × 16, for weights without super-blocks
  void* super_block_panel = nullptr;  // for weights with super-blocks: columns may be permuted to the order of unpacking
};

inline int64_t super_blocks_of(int64_t k) { return (k + 255) / 256; }
inline int64_t tiles_of(int64_t k) { return (k + 31) / 32; }

// The KV cache of a layer, [page, kv head] of `page_bytes` each. In bfloat16 (or float32) keys are stored [slot, d] and
// values [d, slot], so that 16 keys, or 16 dimensions of 32 values, are the rows of a matrix tile. In Q8_0 both are
// int8 [slot, d], followed by a float scale for every 32: writing a slot never changes the scales of another.
// An instruction set may have keys as values are here, and values as keys (kKeysByColumn).
struct CacheView {
  int type;  // OLV_BF16, OLV_F32 or OLV_Q8_0
  uint8_t *keys, *values;
  int kv_heads, head_dim;
  int64_t page_bytes;
};

struct DequantizedPages;

struct AttentionTask {
  const CacheView* cache;
  DequantizedPages* dequantized;  // Q8_0: of the thread
  const int32_t* table;     // the sequence's page table
  const float* q;           // first row of the task
  float* out;
  int64_t stride;           // floats between rows of q and out
  int head_dim;             // columns of a head there: the cache may have more, which are zero
  const int32_t* position;  // of each row
  const int32_t* last;      // the last position that each row sees: its own, or that of its block's end
  int rows;
  int kv_head, q_per_kv;    // query heads [kv_head · q_per_kv, (kv_head + 1) · q_per_kv)
  float scale;
  int window;               // 0: all keys
};

constexpr int64_t kPage = 32;        // slots a page: the depth of a bfloat16 tile
constexpr int64_t kKeyBlock = 128;   // keys per step of the online softmax, in prefill (AMX has its own)
constexpr int kTaskColumns = 128;    // query columns of a task that share a pass over the keys, in prefill, at most
constexpr int64_t kSplit = 128;      // keys per KV split, in decode: few, for models with few KV heads and many threads

// Pages of a Q8_0 cache dequantized to bfloat16, for the duration of a task. All pages of one KV split fit, and those of a
// block of keys.
constexpr int64_t kDequantizedPages = 8;
static_assert(kDequantizedPages >= kSplit / kPage + 2);
struct DequantizedPages {
  uint16_t* memory;                    // [keys and values][kDequantizedPages][kPage · d]
  int64_t page[2][kDequantizedPages];  // which page of the sequence each holds, -1: none
};

// The result of one KV split of a generated row, before normalization. Splits are merged in their order.
struct SplitResult {
  float* out;               // [q_per_kv, d]
  float* max;               // [q_per_kv] the largest score
  float* sum;               // [q_per_kv] Σ e^(score - max)
};

struct Kernels {
  const char* name;
  void (*quantize)(const float* x, int64_t k, int8_t* code, float* scale, float* sum);
  // Packs columns [first, last) of up to 16 rows into their panel, which has k columns; whole tiles of 32, but at the end of
  // a row. x is the first of them, with rows `stride` floats apart. `super_blocks`: for weights that have them.
  void (*pack)(const float* x, int64_t stride, int64_t rows, int64_t first, int64_t last, int64_t k, bool super_blocks,
               void* panel);
  // Both write y[row · stride + n] for all rows of x and weight rows n in [first, last).
  void (*gemv)(const olv_weight&, int64_t first, int64_t last, const Activations&, float* y, int64_t stride);
  // bias: one for each row of the weight, or null. `unpacked`: scratch is as the last call left it, which was with the same
  // rows of the same weight, at most kKeptRows and `kept_bytes` in tiles.
  void (*gemm)(const olv_weight&, int64_t first, int64_t last, const Activations&, const float* bias, float* y, int64_t stride,
               void* scratch, bool unpacked);
  void (*dequantize)(const olv_weight&, int64_t row, float* y);
  // Rows [first, last) as int8 [rows, k] and scales [rows, k / 16], of the types that gemv and gemm do not read.
  void (*expand)(const olv_weight&, int64_t first, int64_t last, int8_t* code, float* scale);
  void (*prefill_attention)(const AttentionTask&, void* scratch);
  // One generated row over the keys [first, last) of one KV split.
  void (*decode_attention)(const AttentionTask&, int64_t first, int64_t last, const SplitResult&);
  // The output of one query head from its results of `count` KV splits, which are `step` floats apart.
  void (*merge_splits)(const SplitResult&, int64_t step, int64_t count, int64_t d, float* y);
  void (*rms_norm)(const float* x, const float* weight, float* y, int64_t width, int size, float eps);
  void (*gate)(const float* gate, const float* up, float* y, int64_t width, int activation);
  void (*softcap)(const float* x, float* y, int64_t width, float cap);
  // Rotates the first 2 · half columns of each head of d, and copies the others.
  void (*rope)(const float* x, const float* cos, const float* sin, float* y, int64_t width, int64_t d, int64_t half,
               int interleaved);
  void (*store_kv)(const CacheView&, int64_t page, int64_t head, int64_t slot, int64_t count, const float* k,
                   const float* v, int64_t stride);
  void (*add)(const float* a, const float* b, float* y, int64_t width);
  double (*read)(const uint8_t* p, int64_t bytes);          // reads every byte, for measuring bandwidth
  double (*peak)(int kind);                                 // runs arithmetic from registers; returns the operations done
  int64_t panel_bytes;                                      // of one tile of a panel
  const SampleLoops& (*sample_loops)();
  QuantizeRow quantize_row;                                 // writes files
  // The weights with super-blocks that `gemm` takes quantized prompt rows for (null: none), and what quantizes them.
  bool (*takes_codes)(const olv_weight&) = nullptr;
  void (*quantize_prompt)(const float* x, int64_t k, int8_t* code, float* scale, float* sum) = nullptr;
  // Whether attention, and linear ops with weights that `takes_codes`, give a row the same bits as a prompt row and as a
  // generated one.
  bool one_kind = false;
  // Whether `gemv` also takes the types that are expanded as they lie, for one row of x: with the same bits.
  bool gemv_expanded = false;
  // Bytes of unpacked weights that `gemm` can find in its scratch again; 0: it unpacks them in every call.
  int64_t kept_bytes = 0;
};

constexpr int64_t kKeptRows = 512;
// Bytes of scratch that a thread needs for `gemm` and `prefill_attention`.
constexpr int64_t kScratch = 4 << 20;
// The longest row of which 32 in bfloat16 fit in it, with their 32 × 32 accumulators.
constexpr int64_t kLongestRow = (kScratch - 4096) / 64;
static_assert(kLongestRow == 65472);
constexpr int64_t kLongestHead = 1024;  // columns of which prefill attention's tiles fit in it

const Kernels& plain_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avxvnni_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
#elif defined(__aarch64__)
const Kernels& neon_kernels();
const Kernels& dotprod_kernels();
const Kernels& i8mm_kernels();
#endif

const Kernels& kernels();         // of the instruction set in use
bool use_isa(const char* name);  // false if this CPU does not have it

}  // namespace olv
