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

#define OLV_ABI 14

typedef struct olv_pool olv_pool;
typedef struct olv_program olv_program;
typedef struct olv_shm olv_shm;

// Storage types, in the order of olivine.dtypes.DTYPES. OLV_GROUPED is qwen3.c's int8 with separate scales; types after
// it are expanded to it (expand.h).
enum olv_type {
  OLV_F32, OLV_F16, OLV_BF16, OLV_Q4_0, OLV_Q4_1, OLV_Q5_0, OLV_Q5_1, OLV_Q8_0, OLV_Q2_K, OLV_Q3_K, OLV_Q4_K,
  OLV_Q5_K, OLV_Q6_K, OLV_IQ4_NL, OLV_IQ4_XS, OLV_MXFP4, OLV_GROUPED,
  OLV_NVFP4, OLV_IQ1_S, OLV_IQ1_M, OLV_IQ2_XXS, OLV_IQ2_XS, OLV_IQ2_S, OLV_IQ3_XXS, OLV_IQ3_S, OLV_TQ1_0, OLV_TQ2_0,
  OLV_TYPES
};

// A weight in the mapped file: n rows of k elements. Experts are consecutive ranges of rows.
typedef struct {
  int32_t type;
  int32_t group;          // OLV_GROUPED: elements per scale
  const uint8_t* data;
  const uint8_t* scales;  // OLV_GROUPED: float32, may be unaligned
  int64_t n, k;
} olv_weight;

enum olv_kind {
  OLV_EMBED, OLV_RMS_NORM, OLV_LINEAR, OLV_ROPE, OLV_STORE_KV, OLV_ATTENTION, OLV_GATE, OLV_ADD, OLV_MOE,
  OLV_TAKE_OUTPUTS, OLV_SOFTCAP, OLV_SCALE, OLV_COLUMNS, OLV_POSITION_SCALE,
  OLV_ALL_REDUCE, OLV_ALL_GATHER, OLV_SEND, OLV_RECEIVE,
  OLV_LAYER_NORM, OLV_ACTIVATE, OLV_INPUT, OLV_CLAMP, OLV_STANDARDIZE, OLV_POSITION_EMBED, OLV_GRID_ROPE, OLV_POOL,
  OLV_CONV, OLV_DEPTHWISE_CONV, OLV_RELATIVE_ATTENTION, OLV_KINDS
};
enum olv_activation { OLV_SILU, OLV_GELU_TANH, OLV_RELU, OLV_SIGMOID };

// One op of the plan. Values are columns of an arena: out, a, b and c are offsets, in floats per row.
typedef struct {
  int32_t kind;
  int32_t outputs;       // 0: one row a token, 1: one row a wanted output
  int64_t out, a, b, c;
  int64_t width;         // columns of out (of a, if there is no out)
  int64_t a_width;       // columns of a
  int32_t weight, bias;  // indices of weights, -1: none. MoE: the first of `size` gate weights; a scale per expert
  int32_t up, down;      // MoE: the first of `size` up and down weights
  int32_t count;         // MoE: experts of all ranks. Linear: how many consecutive ops, from this one on, share the input a
  int32_t top_k, normalize, activation;
  int32_t passing;       // Gate, activate: 1: only the linear op after it reads the result, and nothing else its operands
  int32_t cache, heads, kv_heads, head_dim, window;  // window 0: all tokens
  int32_t size;          // norms: columns that are normalized together. Position scale: tokens of one factor.
                         // Pool: rows. Depthwise conv, relative attention: rows that a row sees.
                         // MoE: experts of this rank. Embed: tokens of all ranks
  int32_t table;         // RoPE: index of the rotary table; grid RoPE: of the first coordinate's, before the second's
  int32_t interleaved;
  int32_t pad;           // Embed: the token for rows with an injected embedding; -1: they take the embedding
  int32_t start;         // Columns: the first one. Position embed: the table's row for coordinates 0, 0.
                         // MoE, Embed: this rank's first expert or token
  int32_t bidirectional; // Attention: rows see up to the batch's `last`, and not only up to their own position
  int32_t strides[2];    // Position embed: rows of the table from one coordinate to the next
  int32_t steps, frames; // Conv: steps in time of a row of a, and the frames that they stand for
  float eps, offset, scale;  // Clamp: at least `scale`, at most `offset`
} olv_op;

typedef struct {
  int64_t rows;                     // T
  int64_t outputs;                  // R
  int64_t sequences;
  const int32_t* tokens;            // [T]
  const int32_t* sequence;          // [T]
  const int32_t* position;          // [T]
  const int32_t* last;              // [T] the last position that a prompt row sees; null: its own
  const uint8_t* generated;         // [T] 0: a prompt row, 1: a generated row
  const int32_t* output_rows;       // [R]
  const int32_t* const* tables;     // page tables, by cache group: [sequences, pages]
  const int64_t* table_pages;       // by cache group
  int64_t embeddings;               // M
  const int32_t* embedding_rows;    // [M]
  const float* embedding;           // [M, D]; of a tower, one for each row
  const int32_t* coordinates;       // [T, 2] of a tower's rows; null: there are none
} olv_batch;

// Sampling parameters; see olivine/engine/sampling.py.
typedef struct {
  float temperature;
  int32_t top_k;                    // 0: off
  double top_p;                     // 1: off
  float log_min_p;                  // -inf: off
  float repetition_penalty, presence_penalty, frequency_penalty;
  int64_t repeat_last_n;            // -1: all
  uint64_t seed;
  const int32_t* bias_tokens;       // tokens of the vocabulary, each once
  const float* bias;
  int64_t bias_count;
} olv_sampling;

// How to sample the token after an output row: olivine.backends.Draw.
typedef struct {
  olv_sampling sampling;
  const int32_t* prompt;            // for the penalties
  int64_t prompt_count;
  const int32_t* output;
  int64_t output_count;
  const uint32_t* mask;             // a bit per token, for the first draw; may be null
  const int32_t* stop;
  int64_t stop_count;
  int64_t at_least;                 // the stop tokens are excluded from so many draws
  int32_t logprobs;                 // how many of the likeliest tokens to report; -1: report nothing
  int32_t forced;                   // the first token; -1: none
} olv_draw;

// How a row ended: it did not (more tokens may follow); a stop token was drawn; a logit is NaN or +inf; no token is
// legal; the caller set it beforehand, and nothing was drawn.
enum olv_end { OLV_OPEN, OLV_STOPPED, OLV_BROKEN, OLV_NOTHING, OLV_REFUSED };

// Where the draws of R output rows go, up to n tokens each.
typedef struct {
  int32_t* tokens;                  // [R, n]
  int64_t* counts;                  // [R] how many were drawn, without a stop token
  uint8_t* ends;                    // [R] olv_end; rows that are not OLV_OPEN beforehand are skipped
  double* logprobs;                 // [R, n]
  int64_t top;                      // the largest `logprobs` of the draws, at most the vocabulary
  int32_t* top_tokens;              // [R, n, top]
  double* top_logprobs;             // [R, n, top]
} olv_drawn;

// Where ranks meet, in op number `op`: reads rows of x, writes rows of out (each null where the op has none). Not 0: failed.
typedef int (*olv_meet)(int64_t op, const float* x, int64_t x_width, float* out, int64_t width, int64_t rows);

typedef struct {
  const olv_op* ops;
  int64_t op_count;
  const olv_weight* weights;
  int64_t weight_count;
  const float* frequencies;         // of the rotary tables, concatenated
  const int64_t* frequency_start;   // [table_count + 1] where each begins
  const float* magnitudes;          // by rotary table
  const int32_t* axes;              // by rotary table: the coordinate that rows are rotated by; -1: the position
  int64_t table_count;
  const int32_t* cache_group;       // by cache
  const int32_t* cache_kv_heads;
  const int32_t* cache_head_dim;
  int64_t cache_count;
  int32_t cache_type;               // OLV_BF16, OLV_F32 or OLV_Q8_0
  const int64_t* group_pages;       // by cache group
  int64_t group_count;
  int64_t page_size;
  int64_t token_width, output_width;  // of the arenas
  int64_t hidden, hidden_width, logits, logits_width;
  olv_shm* shm;                   // where the ranks of this machine meet; null: `meet` is called
  olv_meet meet;                    // both null: the plan is whole
} olv_plan;

OLV_API int olv_abi(void);
OLV_API const char* olv_last_error(void);          // of this thread; empty if the last call succeeded
OLV_API const char* olv_isa(void);                 // the instruction set in use
OLV_API int olv_set_isa(const char* name);         // a name of the table in isa.cpp; 0 if this CPU has it

OLV_API olv_pool* olv_pool_new(int threads);
OLV_API void olv_pool_free(olv_pool*);

// Where ranks of one machine meet, in memory of `olv_shm_bytes` that all of them map: zeros, before the first joins.
// Ranks are numbered stage by stage. `parent`: the process whose end ends this rank; 0: none.
OLV_API int64_t olv_shm_bytes(int ranks, int stages);
OLV_API olv_shm* olv_shm_join(void* memory, int ranks, int stages, int number, int64_t parent);
OLV_API void olv_shm_leave(olv_shm*);
OLV_API void olv_shm_close(olv_shm*);  // a rank has ended: all others fail
// An op where ranks meet, by its kind (OLV_ALL_REDUCE … OLV_RECEIVE), as olv_meet.
OLV_API int olv_shm_meet(olv_shm*, int kind, const float* x, int64_t x_width, float* out, int64_t width, int64_t rows);

OLV_API olv_program* olv_program_new(olv_pool*, const olv_plan*);
OLV_API void olv_program_free(olv_program*);
// hidden [R, D] and logits [R, V] may be null.
OLV_API int olv_step(olv_program*, const olv_batch*, float* hidden, float* logits);
// Runs the batch and draws a token for each output row, then runs decode steps with those tokens, n draws in all (a
// chain). With n > 1 each output row is the last row of a different sequence. `ready`, unless null, is called between
// the batch and the first draws: until it returns, the caller may still set masks of the draws and ends of rows.
typedef void (*olv_ready)(void);
OLV_API int olv_generate(olv_program*, const olv_batch*, const olv_draw*, int64_t n, const olv_drawn*, olv_ready ready);
// Whether a row has the same keys, values and hidden states, to the last bit, as a prompt row and as a generated row.
OLV_API int olv_one_kind(const olv_program*);
// Seconds spent in each kind of op since the last call.
OLV_API void olv_profile(olv_program*, double seconds[OLV_KINDS]);

// Quantizes the weight's rows to another type, with scales that minimize the squared error. Fails on values that are
// not finite or out of the type's range, and on types that have no quantizer.
OLV_API int olv_convert(const olv_weight*, int type, uint8_t* to);

// Registers a mapped file at `data`: if it is truncated and then read, the process still ends with SIGBUS, but prints
// the reason first.
OLV_API int olv_guard(const void* data, int64_t bytes, const char* path);
OLV_API void olv_unguard(const void* data);

// One axis of a resize: value i is the sum of `taps` values from `first[i]` on, with `weights` [to, taps] of 22 bits
// behind the point. `first` does not fall.
typedef struct {
  int64_t from, to, taps;  // taps is a multiple of 4
  const int32_t* first;
  const int32_t* weights;
} olv_axis;

// Resizes an image of four bytes a pixel, [y.from, x.from] to [y.to, x.to]; 0 if it did.
OLV_API int olv_resize(const uint8_t* pixels, const olv_axis* x, const olv_axis* y, uint8_t* to);

// For tests and benchmarks.
OLV_API int olv_linear(olv_pool*, const olv_weight*, const float* x, int64_t rows, int generated, float* y);
// One draw from logits [count], which it modifies, for the token at `position`.
OLV_API int olv_sample(float* logits, int64_t count, const olv_draw*, uint32_t position, const olv_drawn*);
OLV_API void olv_noise(uint64_t seed, uint32_t position, const uint32_t* tokens, int64_t count, float* noise);
OLV_API int olv_dequantize(const olv_weight*, int64_t row, float* y);
// Bytes per second when `bytes` bytes of memory are read repeatedly; a small buffer stays in the caches.
OLV_API double olv_read_bandwidth(olv_pool*, int64_t bytes, int repeats);
// Operations per second in a type: 0 int8, 1 bf16, 2 f32. 0 for types that the instruction set does not compute in.
OLV_API double olv_peak(olv_pool*, int kind, int repeats);

#ifdef __cplusplus
}
#endif
