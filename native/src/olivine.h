// The C ABI between Python (ctypes) and the native CPU backend. Plain structs, no C++ types, no exceptions.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define OLV_API __declspec(dllexport)
#else
#define OLV_API __attribute__((visibility("default")))
#endif

#define OLV_ABI 3

typedef struct olv_pool olv_pool;
typedef struct olv_program olv_program;

// Storage types, in the order of olivine.dtypes.DTYPES; OLV_GROUPED is qwen3.c's int8 with separate scales.
enum olv_type {
  OLV_F32, OLV_F16, OLV_BF16, OLV_Q4_0, OLV_Q4_1, OLV_Q5_0, OLV_Q5_1, OLV_Q8_0, OLV_Q2_K, OLV_Q3_K, OLV_Q4_K,
  OLV_Q5_K, OLV_Q6_K, OLV_IQ4_NL, OLV_IQ4_XS, OLV_MXFP4, OLV_GROUPED, OLV_TYPES
};

// Rows of a weight as they lie in the mapped file: n rows of k elements. Experts are consecutive runs of rows.
typedef struct {
  int32_t type;
  int32_t group;          // OLV_GROUPED: values a scale
  const uint8_t* data;
  const uint8_t* scales;  // OLV_GROUPED: float32, perhaps unaligned
  int64_t n, k;
} olv_weight;

enum olv_kind {
  OLV_EMBED, OLV_RMS_NORM, OLV_LINEAR, OLV_ROPE, OLV_STORE_KV, OLV_ATTENTION, OLV_GATE, OLV_ADD, OLV_MOE,
  OLV_TAKE_OUTPUTS, OLV_SOFTCAP, OLV_KINDS
};
enum olv_activation { OLV_SILU, OLV_GELU_TANH };

// One op of the plan. Values are columns of an arena: out, a and b are offsets, in floats a row.
typedef struct {
  int32_t kind;
  int32_t outputs;       // 0: one row a token, 1: one row a wanted output
  int64_t out, a, b;
  int64_t width;         // columns of out (of a, where there is no out)
  int64_t a_width;       // columns of a
  int32_t weight, bias;  // indices into the weights, -1: none. MoE: the first of `count` gate weights
  int32_t up, down;      // MoE: the first of `count` up and down weights
  int32_t count;         // MoE: experts. Linear: how many ops from here on read the same a
  int32_t top_k, normalize, activation;
  int32_t cache, heads, kv_heads, head_dim, window;  // window 0: all tokens
  int32_t size;          // RMS norm: columns that are normalized together
  int32_t table;         // RoPE: index of the frequencies
  int32_t interleaved;
  float eps, offset, scale;
} olv_op;

typedef struct {
  int64_t rows;                     // T
  int64_t outputs;                  // R
  int64_t sequences;
  const int32_t* tokens;            // [T]
  const int32_t* sequence;          // [T]
  const int32_t* position;          // [T]
  const uint8_t* generated;         // [T] 0: a prompt row, 1: a generated row
  const int32_t* output_rows;       // [R]
  const int32_t* const* tables;     // a cache group: [sequences, pages]
  const int64_t* table_pages;       // a cache group
  int64_t embeddings;               // M
  const int32_t* embedding_rows;    // [M]
  const float* embedding;           // [M, D]
} olv_batch;

// How to choose a token; see olivine/engine/sampling.py.
typedef struct {
  float temperature;
  int32_t top_k;
  double top_p, min_p;
  uint64_t seed;
} olv_sampling;

typedef struct {
  const olv_op* ops;
  int64_t op_count;
  const olv_weight* weights;
  int64_t weight_count;
  const float* frequencies;         // the tables one after another
  const int64_t* frequency_start;   // where each begins; one more than there are tables
  const float* magnitudes;          // a table
  int64_t table_count;
  const int32_t* cache_group;       // a cache
  const int32_t* cache_kv_heads;
  const int32_t* cache_head_dim;
  int64_t cache_count;
  int32_t cache_type;               // OLV_BF16, OLV_F32 or OLV_Q8_0
  const int64_t* group_pages;       // a group
  int64_t group_count;
  int64_t page_size;
  int64_t token_width, output_width;  // of the arenas
  int64_t hidden, hidden_width, logits, logits_width;
} olv_plan;

OLV_API int olv_abi(void);
OLV_API const char* olv_last_error(void);          // of this thread; empty when the last call went well
OLV_API const char* olv_isa(void);                 // the instruction set in use
OLV_API int olv_set_isa(const char* name);         // "plain", "avx2", "avx512", "amx"; 0 when this CPU has it

OLV_API olv_pool* olv_pool_new(int threads);
OLV_API void olv_pool_free(olv_pool*);

OLV_API olv_program* olv_program_new(olv_pool*, const olv_plan*);
OLV_API void olv_program_free(olv_program*);
// hidden [R, D] and logits [R, V] may be null.
// Generates up to n tokens for every row of the batch without coming back: each row is the last token of a sequence
// of its own, and is followed by what `how` (one a row) chooses. tokens is [rows, n]; counts [rows] says how many of
// each were made before a stop token, which is not among them; stopped [rows] whether there was one.
OLV_API int olv_chain(olv_program*, const olv_batch*, int64_t n, const olv_sampling* how, const int32_t* stop,
                      int64_t stop_count, int32_t* tokens, int64_t* counts, uint8_t* stopped);
// Seconds spent in each kind of op since the last call.
OLV_API void olv_profile(olv_program*, double seconds[OLV_KINDS]);
OLV_API int olv_step(olv_program*, const olv_batch*, float* hidden, float* logits);

// For tests and benchmarks.
OLV_API int olv_linear(olv_pool*, const olv_weight*, const float* x, int64_t rows, int generated, float* y);
OLV_API int olv_sample(const float* logits, int64_t count, const olv_sampling*, uint32_t position, int32_t* token);
OLV_API void olv_noise(uint64_t seed, uint32_t position, const uint32_t* tokens, int64_t count, float* noise);
OLV_API int olv_dequantize(const olv_weight*, int64_t row, float* y);
OLV_API double olv_read_bandwidth(olv_pool*, int64_t bytes, int repeats);  // bytes a second
OLV_API double olv_peak(olv_pool*, int which, int repeats);                // operations a second; 0 int8, 1 bf16

#ifdef __cplusplus
}
#endif
