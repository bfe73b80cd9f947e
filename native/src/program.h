// A compiled plan: the ops in order, the arenas they work in, the weights where they lie, and the KV cache.
#pragma once
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "multiply.h"
#include "sample.h"

namespace olv {

class Program {
 public:
  Program(Pool& pool, const olv_plan& plan);
  ~Program();
  void step(const olv_batch& batch, float* hidden, float* logits);
  void generate(const olv_batch& batch, const olv_draw* draws, int64_t n, const olv_drawn& out, olv_ready ready);
  void profile(double* seconds);  // by kind of op, since the last call

 private:
  struct Cache {
    CacheView view;
    int group;
    size_t bytes;
  };
  // Prompt rows come first, then generated rows, in both arenas: a linear op is then two runs of rows.
  struct Order {
    int64_t rows = 0, prompt = 0;
    std::vector<int32_t> source;  // which row of the batch (or which output) stands here
  };

  // Prompt rows of one sequence that attend together.
  struct Tile {
    int64_t first;
    int rows;
  };
  // A stretch of the keys of a generated row.
  struct Part {
    int64_t row, first, last;
  };

  // An expert that a row uses, how much of it, and where among the rows of all experts that work is done.
  struct Choice {
    int32_t expert;
    float share;
    int64_t place;
  };

  void draw(int64_t place, int thread, const olv_draw* draws, int64_t n, const olv_drawn& out);
  void touch_first_pages();
  void sort_rows(const olv_batch& batch);
  void turn_tables();
  void run(const olv_op& op, const olv_batch& batch);
  void embed(const olv_op& op, const olv_batch& batch);
  void norm(const olv_op& op);
  void rope(const olv_op& op);
  void store(const olv_op& op, const olv_batch& batch);
  void attend(const olv_op& op, const olv_batch& batch);
  ConvertedPages* converted(const CacheView& cache, int thread);
  void attend_prompts(const olv_op& op, const olv_batch& batch);
  void attend_generated(const olv_op& op, const olv_batch& batch);
  void linear(const olv_op* op, int64_t count);
  void route(const olv_op& op);
  void mixture(const olv_op& op);

  const Order& order(const olv_op& op) const { return op.outputs ? outputs_ : tokens_; }
  float* value(const olv_op& op, int64_t offset) const {
    return op.outputs ? output_arena_ + offset * outputs_.rows : token_arena_ + offset * tokens_.rows;
  }

  Pool& pool_;
  const Kernels& kernels_;
  std::vector<olv_op> ops_;
  std::vector<olv_weight> weights_;
  std::vector<std::vector<float>> factors_;  // by op: what a norm or a scale multiplies with; of a mixture, an expert each
  std::vector<std::vector<float>> biases_;
  std::vector<float> frequencies_;
  std::vector<int64_t> frequency_start_;
  std::vector<float> magnitudes_;
  std::vector<Cache> caches_;
  std::thread warm_up_;  // over with the first step
  std::vector<int64_t> group_pages_;
  olv_plan plan_;
  size_t hidden_end_ = 0;  // the ops before it make the hidden states

  Order tokens_, outputs_;
  std::vector<int32_t> token_, sequence_, position_;
  std::vector<int32_t> output_place_;  // the token row that each output row is taken from
  std::vector<std::vector<float>> cos_, sin_;  // a table: [T, d / 2]
  Buffer token_memory_, output_memory_, partial_memory_, mixture_memory_;
  float* token_arena_ = nullptr;
  float* output_arena_ = nullptr;
  Multiplier multiplier_;
  std::vector<ConvertedPages> converted_;  // a thread
  std::vector<Buffer> converted_memory_;
  double seconds_[OLV_KINDS] = {};
  std::vector<Sampler> samplers_;   // a thread
  std::vector<History> histories_;  // an output row of the first batch
  int64_t vocabulary_ = INT64_MAX;  // tokens that can be embedded
  // The rows that are drawn for: which output row of the first batch, its last token and position.
  std::vector<int32_t> next_row_, next_token_, next_sequence_, next_position_, next_output_;
  std::vector<uint8_t> next_generated_;
  // Kept from step to step, so that a step of a size seen before allocates nothing.
  std::vector<int32_t> place_;
  std::vector<Tile> tiles_;
  std::vector<Part> parts_;
  std::vector<int64_t> part_begin_;
  std::vector<Product> products_;
  std::vector<Choice> chosen_;  // [rows, top_k]
  std::vector<int64_t> expert_begin_, expert_next_, expert_prompt_;
  std::vector<Job> jobs_, down_jobs_;
};

const Kernels& kernels();  // of the instruction set in use

}  // namespace olv
