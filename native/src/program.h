// A compiled plan: the ops in order, the arenas of their values, the mapped weights, and the KV cache.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "matmul.h"
#include "sample.h"

namespace olv {

class Program {
 public:
  Program(Pool& pool, const olv_plan& plan);
  ~Program();
  void step(const olv_batch& batch, float* hidden, float* logits);
  void generate(const olv_batch& batch, const olv_draw* draws, int64_t n, const olv_drawn& out, olv_ready ready);
  bool one_kind() const;  // olv_one_kind
  void profile(double* seconds);  // by kind of op, since the last call

 private:
  struct Cache {
    CacheView view;
    int group;
    size_t bytes;
  };
  // In both arenas prompt rows come first, then generated rows: a linear op is one GEMM and one GEMV.
  struct RowOrder {
    int64_t rows = 0, prompt = 0;
    std::vector<int32_t> source;  // the row of the batch (or the output) at each row of the arena
  };

  // Prompt rows of one sequence that one attention task takes.
  struct QueryTile {
    int64_t first;
    int rows;
  };
  // A range of the keys of a generated row, for split-KV decode attention.
  struct KvSplit {
    int64_t row, first, last;
  };

  // An expert that a row is routed to, its weight, and the row's index in the rows gathered by expert.
  struct Route {
    int32_t expert;
    float weight;
    int64_t index;
  };

  void draw(int64_t output, int thread, const olv_draw* draws, int64_t n, const olv_drawn& out);
  void touch_first_pages();
  void order_rows(const olv_batch& batch);
  void update_rotary_tables();
  size_t run_group(size_t first, size_t end, const olv_batch& batch);  // returns the op after the group
  void run(const olv_op& op, const olv_batch& batch);
  bool is_row_op(const olv_op& op) const;
  void run_row(const olv_op& op, int64_t row, int64_t column, int64_t width);
  void embed(const olv_op& op, const olv_batch& batch);
  void clear_begun_pages(const olv_op& op, const olv_batch& batch);
  void store(const olv_op& op, const olv_batch& batch);
  void store_rows(const olv_op& op, const olv_batch& batch, const float* keys, const float* values, int64_t stride,
                  int64_t head, int64_t first, int64_t last);
  void store_head(const olv_op& op, const olv_batch& batch, int64_t head, int64_t first, int64_t last);
  void attend(const olv_op& op, const olv_batch& batch);
  void attend_with(const olv_op* ops, int64_t count, const olv_batch& batch);
  bool can_split_by_head(const olv_op* ops, int64_t count) const;
  DequantizedPages* dequantized(const CacheView& cache, int thread);
  void prefill_attention(const olv_op& op, const olv_batch& batch);
  template <class F>
  void decode_attention(const olv_op& op, const olv_batch& batch, F before);
  void linear(const olv_op* op, const olv_op* before = nullptr, int64_t count = 0);
  size_t linear_end(const olv_op* op) const;
  const olv_weight* only_weight_of(const olv_op* next, const olv_op& op, const float* x) const;
  void read_ahead(size_t op);
  void prepare_tower(size_t index);  // what an op of a tower needs of its weights
  bool run_tower(const olv_op& op, const olv_batch& batch);  // false: the op is none of a tower's
  void run_tower_row(const olv_op& op, int64_t row);
  void layer_norm(const olv_op& op, const float* x, float* y);
  void activate(int activation, const float* x, const float* up, float* y, int64_t width);
  void pool(const olv_op& op);
  void conv(const olv_op& op);
  void depthwise_conv(const olv_op& op);
  void relative_attention(const olv_op& op);
  void route(const olv_op& op);
  void moe(const olv_op& op);

  std::vector<float> floats(int32_t index, int64_t size) const;  // a vector weight in float32; ones if there is none
  const RowOrder& order(const olv_op& op) const { return op.outputs ? outputs_ : tokens_; }
  float* value(const olv_op& op, int64_t offset) const {
    return op.outputs ? output_arena_ + offset * outputs_.rows : token_arena_ + offset * tokens_.rows;
  }

  Pool& pool_;
  const Kernels& kernels_;
  std::vector<olv_op> ops_;
  std::vector<olv_weight> weights_;
  std::vector<std::vector<float>> factors_;  // by op: weights of a norm or a scale; of a MoE, a scale per expert
  std::vector<std::vector<float>> biases_;
  std::vector<float> ones_;  // as wide as the widest activation
  std::vector<float> frequencies_;
  std::vector<int64_t> frequency_start_;
  std::vector<float> magnitudes_;
  std::vector<int32_t> axes_;
  std::vector<Cache> caches_;
  std::thread warm_up_;  // joined by the first step
  std::vector<int64_t> group_pages_;
  olv_plan plan_;
  size_t hidden_end_ = 0;  // the ops before it compute the hidden states
  std::vector<size_t> next_linear_;  // by op: the first of the linear ops after its group

  RowOrder tokens_, outputs_;
  std::vector<int32_t> token_, sequence_, position_, last_;
  std::vector<int32_t> coordinate_[2];
  std::vector<int32_t> output_token_row_;  // the token row that each output row is taken from
  std::vector<std::vector<float>> cos_, sin_;  // by rotary table: [T, d / 2]
  Buffer token_memory_, output_memory_, split_memory_, moe_memory_, conv_memory_;
  float* token_arena_ = nullptr;
  float* output_arena_ = nullptr;
  Matmul matmul_;
  std::vector<DequantizedPages> dequantized_;  // by thread
  std::vector<Buffer> dequantized_memory_;
  double seconds_[OLV_KINDS] = {};
  std::vector<Sampler> samplers_;   // by thread
  std::vector<History> histories_;  // by output row of the first batch
  int64_t vocabulary_ = INT64_MAX;  // tokens that can be embedded
  // The rows of the next decode step: the output row of the first batch, its last token and position.
  std::vector<int32_t> next_row_, next_token_, next_sequence_, next_position_, next_output_;
  std::vector<uint8_t> next_generated_;
  // Kept between steps, so that a step of a size seen before allocates nothing.
  std::vector<int32_t> arena_row_;  // by row of the batch
  std::vector<QueryTile> tiles_;
  std::vector<KvSplit> splits_;
  std::vector<int64_t> split_begin_;
  std::unique_ptr<std::atomic<int32_t>[]> splits_left_;  // by row and KV head
  int64_t splits_left_size_ = 0;
  std::vector<Product> products_;
  std::vector<Route> routes_;  // [rows, top_k]
  std::vector<int64_t> expert_begin_, expert_next_, expert_prompt_;
  std::vector<Job> jobs_, down_jobs_;
};

}  // namespace olv
