// Mixtures of experts in a program.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace olv {

// The experts that each row uses, in order of their number, and how much of each.
void Program::route(const olv_op& op) {
  const int64_t rows = order(op).rows, experts = op.count, used = op.top_k;
  const std::vector<float>& scale = factors_[size_t(&op - ops_.data())];
  chosen_.resize(size_t(rows * used));
  multiplier_.over_rows(rows, 16 * experts, [&](int64_t r) {
    thread_local std::vector<float> p;
    thread_local std::vector<int32_t> best;
    p.resize(size_t(experts));
    best.resize(size_t(experts));
    const float* logits = value(op, op.b) + r * experts;
    const float peak = *std::max_element(logits, logits + experts);
    float total = 0;
    for (int64_t e = 0; e < experts; ++e) total += p[size_t(e)] = std::exp(logits[e] - peak);
    for (int64_t e = 0; e < experts; ++e) best[size_t(e)] = int32_t(e);
    std::partial_sort(best.begin(), best.begin() + used, best.end(), [&](int32_t a, int32_t b) {
      return p[size_t(a)] != p[size_t(b)] ? p[size_t(a)] > p[size_t(b)] : a < b;
    });
    if (op.normalize) {
      total = 0;
      for (int64_t i = 0; i < used; ++i) total += p[size_t(best[size_t(i)])];
    }
    std::sort(best.begin(), best.begin() + used);
    for (int64_t i = 0; i < used; ++i) {
      const int32_t e = best[size_t(i)];
      chosen_[size_t(r * used + i)] = {e, p[size_t(e)] / total * scale[size_t(e)], 0};
    }
  });
}

// Rows are gathered by expert, and all experts work at once: of those that no row uses, nothing is read.
void Program::mixture(const olv_op& op) {
  const Order& order = this->order(op);
  const int64_t experts = op.count, width = op.width, used = op.top_k, total = order.rows * used;
  const int64_t inner = weights_[size_t(op.weight)].n;
  route(op);
  // Where the rows of each expert begin; a row finds its place by counting on.
  expert_begin_.assign(size_t(experts) + 1, 0);
  for (const Choice& choice : chosen_) ++expert_begin_[size_t(choice.expert) + 1];
  for (size_t e = 0; e < size_t(experts); ++e) expert_begin_[e + 1] += expert_begin_[e];
  expert_next_.assign(expert_begin_.begin(), expert_begin_.end());
  for (Choice& choice : chosen_) choice.place = expert_next_[size_t(choice.expert)]++;
  float* gathered = mixture_memory_.of<float>(total * (width + 2 * inner));
  float *g = gathered + total * width, *u = g + total * inner, *result = gathered;
  multiplier_.over_rows(total, width, [&](int64_t i) {
    memcpy(gathered + chosen_[size_t(i)].place * width, value(op, op.a) + i / used * width, size_t(width) * 4);
  });
  // How many of an expert's rows are prompt rows: they come first, as everywhere.
  expert_prompt_.assign(size_t(experts), 0);
  for (int64_t i = 0; i < order.prompt * used; ++i) ++expert_prompt_[size_t(chosen_[size_t(i)].expert)];
  products_.resize(size_t(3 * experts));
  jobs_.clear();
  down_jobs_.clear();
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = expert_begin_[size_t(e)], rows = expert_begin_[size_t(e) + 1] - first;
    if (!rows) continue;
    const int64_t prompt = expert_prompt_[size_t(e)];
    Product* products = &products_[size_t(3 * e)];
    products[0] = {&weights_[size_t(op.weight + e)], g + first * inner, inner};
    products[1] = {&weights_[size_t(op.up + e)], u + first * inner, inner};
    products[2] = {&weights_[size_t(op.down + e)], result + first * width, width};
    jobs_.push_back({products, 2, gathered + first * width, prompt, rows - prompt});
    down_jobs_.push_back({products + 2, 1, g + first * inner, prompt, rows - prompt});
  }
  multiplier_.multiply(jobs_.data(), int64_t(jobs_.size()));
  multiplier_.over_rows(total, 8 * inner, [&](int64_t r) {
    kernels_.gate(g + r * inner, u + r * inner, g + r * inner, inner, op.activation);
  });
  multiplier_.multiply(down_jobs_.data(), int64_t(down_jobs_.size()));
  // Expert by expert in order of their number: a row's sum does not depend on the rows beside it.
  multiplier_.over_rows(order.rows, 2 * used * width, [&](int64_t r) {
    float* y = value(op, op.out) + r * width;
    std::fill(y, y + width, 0.f);
    for (int64_t i = 0; i < used; ++i) {
      const Choice& choice = chosen_[size_t(r * used + i)];
      const float* x = result + choice.place * width;
      for (int64_t j = 0; j < width; ++j) y[j] += choice.share * x[j];
    }
  });
}

}  // namespace olv
