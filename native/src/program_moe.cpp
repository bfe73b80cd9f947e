// Mixture-of-experts ops of a program.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace olv {

// The experts that each row is routed to, in order of their index, and their weights. Those of other ranks are -1.
void Program::route(const olv_op& op) {
  const int64_t rows = order(op).rows, experts = op.count, used = op.top_k;
  const std::vector<float>& scale = factors_[size_t(&op - ops_.data())];
  routes_.resize(size_t(rows * used));
  matmul_.parallel_rows(rows, 16 * experts, [&](int64_t r) {
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
      const int32_t mine = e - op.start;
      const bool here = mine >= 0 && mine < op.size;
      routes_[size_t(r * used + i)] = {here ? mine : -1, here ? p[size_t(e)] / total * scale[size_t(mine)] : 0, -1};
    }
  });
}

// Rows are gathered by expert, and one parallel loop runs all experts that have rows; the weights of others are not read.
void Program::moe(const olv_op& op) {
  const RowOrder& order = this->order(op);
  const int64_t experts = op.size, width = op.width, used = op.top_k, total = order.rows * used;
  const int64_t inner = weights_[size_t(op.weight)].n;
  route(op);
  // A counting sort of the routes by expert.
  expert_begin_.assign(size_t(experts) + 1, 0);
  for (const Route& route : routes_)
    if (route.expert >= 0) ++expert_begin_[size_t(route.expert) + 1];
  for (size_t e = 0; e < size_t(experts); ++e) expert_begin_[e + 1] += expert_begin_[e];
  expert_next_.assign(expert_begin_.begin(), expert_begin_.end());
  for (Route& route : routes_)
    if (route.expert >= 0) route.index = expert_next_[size_t(route.expert)]++;
  float* gathered = moe_memory_.array<float>(total * (width + 2 * inner));
  float *g = gathered + total * width, *u = g + total * inner, *result = gathered;
  matmul_.parallel_rows(total, width, [&](int64_t i) {
    const int64_t index = routes_[size_t(i)].index;
    if (index >= 0) memcpy(gathered + index * width, value(op, op.a) + i / used * width, size_t(width) * 4);
  });
  // Prompt rows per expert: they come first, as in the arenas.
  expert_prompt_.assign(size_t(experts), 0);
  for (int64_t i = 0; i < order.prompt * used; ++i)
    if (routes_[size_t(i)].expert >= 0) ++expert_prompt_[size_t(routes_[size_t(i)].expert)];
  products_.resize(size_t(3 * experts));
  jobs_.clear();
  down_jobs_.clear();
  const bool gates = op.activation <= OLV_GELU_TANH;  // the others are no kernel's: a pass of their own
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = expert_begin_[size_t(e)], rows = expert_begin_[size_t(e) + 1] - first;
    if (!rows) continue;
    const int64_t prompt = expert_prompt_[size_t(e)];
    Product* products = &products_[size_t(3 * e)];
    products[0] = {&weights_[size_t(op.weight + e)], g + first * inner, inner};
    products[1] = {&weights_[size_t(op.up + e)], u + first * inner, inner};
    products[2] = {&weights_[size_t(op.down + e)], result + first * width, width};
    jobs_.push_back({products, 2, gathered + first * width, prompt, rows - prompt, gates ? g + first * inner : nullptr,
                     op.activation});
    down_jobs_.push_back({products + 2, 1, g + first * inner, prompt, rows - prompt});
  }
  matmul_.multiply(jobs_.data(), int64_t(jobs_.size()));
  if (!gates)
    matmul_.parallel_rows(expert_begin_.back(), 2 * inner, [&](int64_t row) {
      activate(op.activation, g + row * inner, u + row * inner, g + row * inner, inner);
    });
  matmul_.multiply(down_jobs_.data(), int64_t(down_jobs_.size()));
  // Summed in the order of the experts: a row's result does not depend on the other rows of the batch.
  matmul_.parallel_rows(order.rows, 2 * used * width, [&](int64_t r) {
    float* y = value(op, op.out) + r * width;
    std::fill(y, y + width, 0.f);
    for (int64_t i = 0; i < used; ++i) {
      const Route& route = routes_[size_t(r * used + i)];
      if (route.expert < 0) continue;
      const float* x = result + route.index * width;
      for (int64_t j = 0; j < width; ++j) y[j] += route.weight * x[j];
    }
  });
}

}  // namespace olv
