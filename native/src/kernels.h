// What an instruction set provides. One table each; `kernels()` in abi.cpp chooses by CPUID.
#pragma once
#include "olivine.h"

namespace olv {

// Rows of activations, prepared for linear ops. Generated rows are quantized to int8 in groups of 16; prompt rows are
// packed into panels of 16 rows. Which of the two a row takes follows from its kind alone.
struct Rows {
  int64_t count = 0, k = 0;
  const float* values = nullptr;  // [count, k]
  int8_t* code = nullptr;         // [count, strips · 256]
  float* scale = nullptr;         // [count, strips · 16]
  float* sum = nullptr;           // [count, strips · 16]: scale · Σ code
  void* panel = nullptr;          // [⌈count / 16⌉, ⌈k / 32⌉] tiles of 32 × 16, for weights without strips
  void* strip_panel = nullptr;    // the same for weights with strips: perhaps in the order in which those are unpacked
};

inline int64_t strips_of(int64_t k) { return (k + 255) / 256; }
inline int64_t tiles_of(int64_t k) { return (k + 31) / 32; }

// One cache of a layer, [page, kv head] of `page_bytes` each. In bfloat16 (or float32) keys lie [slot, d] and values
// [d, slot]: so that 16 keys, or 16 dimensions of 32 values, are the rows of a matrix tile. As Q8_0 both are bytes
// [slot, d], then a float for every 32 of them: a slot is written once, and never changes the scales of another.
struct CacheView {
  int type;  // OLV_BF16, OLV_F32 or OLV_Q8_0
  uint8_t *keys, *values;
  int kv_heads, head_dim;
  int64_t page_bytes;
};

struct ConvertedPages;

struct AttentionTask {
  const CacheView* cache;
  ConvertedPages* converted;  // Q8_0: the thread's
  const int32_t* table;     // the sequence's pages
  const float* q;           // first row of the task
  float* out;
  int64_t stride;           // floats between rows of q and out
  const int32_t* position;  // of each row
  int rows;
  int kv_head, share;       // query heads kv_head · share …
  float scale;
  int window;               // 0: all
};

constexpr int64_t kPage = 32;        // slots a page: the depth of a bfloat16 tile
constexpr int64_t kKeyBlock = 128;   // keys whose scores are kept at once
constexpr int64_t kSplit = 512;      // keys of a generated row that one task attends to

// Pages of a Q8_0 cache as bfloat16, for as long as a task lasts. A part of a generated row fits as a whole.
constexpr int64_t kConverted = kSplit / kPage + 2;
struct ConvertedPages {
  uint16_t* memory;                    // [keys and values][kConverted][kPage · d]
  int64_t holds[2][kConverted];        // which page of the sequence is there, -1: none
};

// What a part of the keys of a generated row contributes: merged in the order of the parts.
struct Partial {
  float* out;               // [share, d]
  float* peak;              // [share]
  float* total;             // [share]
};

struct Kernels {
  const char* name;
  void (*quantize)(const float* x, int64_t k, int8_t* code, float* scale, float* sum);
  // One block of up to 16 rows; `strips`: for weights that have them.
  void (*pack)(const float* x, int64_t rows, int64_t k, bool strips, void* panel);
  // y[row · stride + n] for all rows of x and n in [first, last).
  void (*gemv)(const olv_weight&, int64_t first, int64_t last, const Rows&, float* y, int64_t stride);
  void (*gemm)(const olv_weight&, int64_t first, int64_t last, const Rows&, float* y, int64_t stride, void* scratch);
  void (*dequantize)(const olv_weight&, int64_t row, float* y);
  void (*attend_prompt)(const AttentionTask&, void* scratch);
  void (*attend_part)(const AttentionTask&, int64_t first, int64_t last, const Partial&);  // one row
  void (*rms_norm)(const float* x, const float* weight, float* y, int64_t width, int size, float eps);
  void (*gate)(const float* gate, const float* up, float* y, int64_t width, int activation);
  void (*softcap)(const float* x, float* y, int64_t width, float cap);
  // Rotates the first 2 · half columns of each head of d, and copies the others.
  void (*rope)(const float* x, const float* cos, const float* sin, float* y, int64_t width, int64_t d, int64_t half,
               int interleaved);
  void (*store_kv)(const CacheView&, int64_t page, int64_t head, int64_t slot, int64_t count, const float* k,
                   const float* v, int64_t stride);
  void (*add)(const float* a, const float* b, float* y, int64_t width);
  double (*read)(const uint8_t* p, int64_t bytes);          // touches every byte
  double (*peak)(int kind);                                 // does a number of operations; gives that number
  int64_t panel_bytes;                                      // of one tile of a panel
};

// Bytes of scratch that a thread needs for `gemm` and `attend_prompt`.
constexpr int64_t kScratch = 4 << 20;
// What leaves room in it for 32 rows of bfloat16 and their 32 × 32 products.
constexpr int64_t kLongestRow = (kScratch - 4096) / 64;
static_assert(kLongestRow == 65472);

const Kernels& plain_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& amx_kernels();
#endif

}  // namespace olv
