// The ops that only towers have: encoders of images and of sound. Their rows are prompt rows, and the rows of a sequence
// are adjacent, in order and complete, so that the row before one at a position above 0 is that of the same sequence.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "program.h"
#include "vec.h"

namespace olv {
namespace {

constexpr int64_t kConvRows = 32;  // rows whose patches are gathered at once

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// A matrix weight in float32, [n, k].
std::vector<float> matrix(const Kernels& kernels, const olv_weight& w) {
  std::vector<float> values(size_t(w.n * w.k));
  for (int64_t row = 0; row < w.n; ++row) kernels.dequantize(w, row, values.data() + row * w.k);
  return values;
}

float dot(const float* a, const float* b, const float* c, int64_t n) {  // Σ a · (b + c)
  v16 sum{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) sum += loadv(a + i) * (loadv(b + i) + loadv(c + i));
  if (i < n) sum += load_partial(a + i, n - i) * (load_partial(b + i, n - i) + load_partial(c + i, n - i));
  return sum16(sum);
}

v16 other_activation(int kind, v16 x) {
  return kind == OLV_RELU ? max16(x, v16{}) : inverse16(1.f + exp16(-x));
}

}  // namespace

void Program::prepare_tower(size_t index) {
  const olv_op& op = ops_[index];
  const auto weight = [&](int32_t i) -> const olv_weight& { return weights_.at(size_t(i)); };
  switch (op.kind) {
    case OLV_LAYER_NORM:
      factors_[index] = floats(op.weight, op.size);
      biases_[index] = floats(op.bias, op.size);
      if (op.bias < 0) std::fill(biases_[index].begin(), biases_[index].end(), 0.f);
      return;
    case OLV_ACTIVATE:
      ones_.resize(std::max(ones_.size(), size_t(op.width)), 1.f);
      return;
    case OLV_STANDARDIZE:
      factors_[index] = floats(op.weight, op.width);
      biases_[index] = floats(op.bias, op.width);
      return;
    case OLV_POSITION_EMBED:
      return require(weight(op.weight).k == op.width, "a table of positions whose rows differ from its op's");
    case OLV_GRID_ROPE: {
      require(op.table >= 0 && op.table + 1 < plan_.table_count && axes_[size_t(op.table)] == 0 &&
                  axes_[size_t(op.table) + 1] == 1,
              "a rotary embedding without frequencies for both coordinates");
      const int64_t pairs = frequency_start_[size_t(op.table) + 1] - frequency_start_[size_t(op.table)];
      return require(op.head_dim > 0 && 2 * pairs <= op.head_dim && op.width % (2 * op.head_dim) == 0,
                     "a rotary embedding whose head size differs from its op's");
    }
    case OLV_POOL:
      return require(op.size > 0 && op.a_width == op.width, "pooling of other columns than its op's");
    case OLV_CONV: {
      // [C', C, 3, 3] to [C', 3, 3, C], which is how the patches of rows are gathered.
      const olv_weight& w = weight(op.weight);
      const int64_t outs = op.count, channels = w.n * w.k / (9 * outs);
      require(w.n * w.k == 9 * outs * channels && op.steps > 0 && op.frames > 0 &&
                  op.a_width % (op.steps * channels) == 0 && op.width == op.a_width / channels / 4 * outs,
              "a convolution whose weight differs from its op's");
      require(9 * channels <= kLongestRow, "a convolution of more than 7274 channels");
      const std::vector<float> stored = matrix(kernels_, w);
      factors_[index].resize(stored.size());
      for (int64_t o = 0; o < outs; ++o)
        for (int64_t c = 0; c < channels; ++c)
          for (int64_t at = 0; at < 9; ++at)
            factors_[index][size_t((o * 9 + at) * channels + c)] = stored[size_t((o * channels + c) * 9 + at)];
      return;
    }
    case OLV_DEPTHWISE_CONV: {
      const olv_weight& w = weight(op.weight);
      require(w.n == op.width && w.k == op.size, "a convolution whose weight differs from its op's");
      const std::vector<float> stored = matrix(kernels_, w);
      factors_[index].resize(stored.size());
      for (int64_t i = 0; i < w.n; ++i)
        for (int64_t m = 0; m < w.k; ++m) factors_[index][size_t(m * w.n + i)] = stored[size_t(i * w.k + m)];
      return;
    }
    case OLV_RELATIVE_ATTENTION: {
      const olv_weight& w = weight(op.weight);
      require(w.n == op.size && w.k == op.width && op.heads > 0 && op.width % op.heads == 0,
              "relative keys that differ from their op's");
      factors_[index] = matrix(kernels_, w);
      return;
    }
    default:
      return;
  }
}

bool Program::run_tower(const olv_op& op, const olv_batch& batch) {
  switch (op.kind) {
    case OLV_INPUT:
      matmul_.parallel_rows(tokens_.rows, op.width, [&](int64_t r) {
        const float* x = batch.embedding + tokens_.source[size_t(r)] * op.width;
        float* y = value(op, op.out) + r * op.width;
        for (int64_t i = 0; i < op.width; ++i) y[i] = x[i] * op.scale + op.offset;
      });
      return true;
    case OLV_POOL:
      pool(op);
      return true;
    case OLV_CONV:
      conv(op);
      return true;
    case OLV_DEPTHWISE_CONV:
      depthwise_conv(op);
      return true;
    case OLV_RELATIVE_ATTENTION:
      relative_attention(op);
      return true;
    default:
      return false;
  }
}

void Program::run_tower_row(const olv_op& op, int64_t r) {
  const size_t index = size_t(&op - ops_.data());
  const float* x = value(op, op.a) + r * op.width;
  float* y = value(op, op.out) + r * op.width;
  switch (op.kind) {
    case OLV_LAYER_NORM:
      return layer_norm(op, x, y);
    case OLV_ACTIVATE:
      return activate(op.activation, x, nullptr, y, op.width);
    case OLV_GATE:
      return activate(op.activation, x, value(op, op.b) + r * op.width, y, op.width);
    case OLV_CLAMP:
      return clamp(x, y, op.width, op.scale, op.offset);
    case OLV_STANDARDIZE: {
      const float *mean = factors_[index].data(), *scale = biases_[index].data();
      for (int64_t i = 0; i < op.width; ++i) y[i] = (x[i] - mean[i]) * scale[i];
      return;
    }
    case OLV_POSITION_EMBED: {
      const int64_t at = int64_t(op.start) + int64_t(op.strides[0]) * coordinate_[0][size_t(r)] +
                         int64_t(op.strides[1]) * coordinate_[1][size_t(r)];
      kernels_.dequantize(weights_[size_t(op.weight)], at, y);
      return kernels_.add(x, y, y, op.width);
    }
    case OLV_GRID_ROPE: {
      const size_t table = size_t(op.table);
      const int64_t pairs = frequency_start_[table + 1] - frequency_start_[table], half = op.head_dim;
      for (int64_t start = 0; start < op.width; start += half) {
        const size_t axis = table + size_t(start / half % 2);
        const float *cos = cos_[axis].data() + r * pairs, *sin = sin_[axis].data() + r * pairs;
        kernels_.rope(x + start, cos, sin, y + start, half, half, pairs, 0);
      }
      return;
    }
  }
}

// Of each group of op.size columns of a row.
void Program::layer_norm(const olv_op& op, const float* x, float* y) {
  const size_t index = size_t(&op - ops_.data());
  const float *weight = factors_[index].data(), *bias = biases_[index].data();
  const int64_t size = op.size;
  for (int64_t start = 0; start < op.width; start += size, x += size, y += size) {
    v16 sums{}, squares{};
    int64_t i = 0;
    for (; i + 16 <= size; i += 16) sums += loadv(x + i);
    if (i < size) sums += load_partial(x + i, size - i);
    const float mean = sum16(sums) / float(size);
    for (i = 0; i + 16 <= size; i += 16) {
      const v16 centred = loadv(x + i) - mean;
      squares += centred * centred;
    }
    float rest = 0;  // of columns that fill no vector: zeros beside them would not be centred
    for (; i < size; ++i) rest += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.f / std::sqrt((sum16(squares) + rest) / float(size) + op.eps);
    for (i = 0; i + 16 <= size; i += 16)
      storev(y + i, (loadv(x + i) - mean) * scale * loadv(weight + i) + loadv(bias + i));
    for (; i < size; ++i) y[i] = (x[i] - mean) * scale * weight[i] + bias[i];
  }
}

// A row of an activation, or of a gate with one that no decoder has.
void Program::activate(int activation, const float* x, const float* up, float* y, int64_t width) {
  if (activation <= OLV_GELU_TANH) return kernels_.gate(x, up ? up : ones_.data(), y, width, activation);
  for (int64_t i = 0; i < width; i += 16) {
    const int64_t n = std::min<int64_t>(16, width - i);
    v16 v = other_activation(activation, load_partial(x + i, n));
    if (up) v = v * load_partial(up + i, n);
    memcpy(y + i, &v, size_t(n) * 4);
  }
}

void Program::pool(const olv_op& op) {
  matmul_.parallel_rows(outputs_.rows, op.size * op.width, [&](int64_t r) {
    const float* x = token_arena_ + op.a * tokens_.rows + output_token_row_[size_t(r)] * op.width;
    float* y = output_arena_ + op.out * outputs_.rows + r * op.width;
    memcpy(y, x, size_t(op.width) * 4);
    for (int64_t row = 1; row < op.size; ++row) kernels_.add(y, x + row * op.width, y, op.width);
    const float share = 1.f / float(op.size);
    for (int64_t i = 0; i < op.width; ++i) y[i] *= share;
  });
}

// As a GEMM: for each step and frequency of the result the 3 × 3 × C values that it sees, and zeros beyond the edges.
void Program::conv(const olv_op& op) {
  const std::vector<float>& weight = factors_[size_t(&op - ops_.data())];
  const int64_t outs = op.count, channels = int64_t(weight.size()) / (9 * outs), steps = op.steps;
  const int64_t frequencies = op.a_width / (steps * channels), wide = 9 * channels;
  const int64_t per_row = steps / 2 * (frequencies / 2);  // rows of the GEMM
  const olv_weight w{OLV_F32, 0, reinterpret_cast<const uint8_t*>(weight.data()), nullptr, outs, wide};
  float* patches = conv_memory_.array<float>(kConvRows * per_row * wide);
  const auto valid = [&](int64_t r) { return (int64_t(coordinate_[0][size_t(r)]) * steps + op.frames - 1) / op.frames; };
  for (int64_t first = 0; first < tokens_.rows; first += kConvRows) {
    const int64_t count = std::min(kConvRows, tokens_.rows - first);
    matmul_.parallel_rows(count, per_row * wide, [&](int64_t n) {
      const int64_t r = first + n;
      const float* x = value(op, op.a) + r * op.a_width;
      float* to = patches + n * per_row * wide;
      for (int64_t step = 0; step < steps; step += 2)
        for (int64_t frequency = 0; frequency < frequencies; frequency += 2)
          for (int64_t t = step - 1; t < step + 2; ++t)
            for (int64_t f = frequency - 1; f < frequency + 2; ++f, to += channels) {
              // The step before the row's first is the last one of the row before it.
              const bool valid_step = t >= 0 ? t < valid(r) : position_[size_t(r)] > 0 && valid(r - 1) == steps;
              if (valid_step && f >= 0 && f < frequencies)
                memcpy(to, x + (t * frequencies + f) * channels, size_t(channels) * 4);
              else
                memset(to, 0, size_t(channels) * 4);
            }
    });
    const Product product{&w, value(op, op.out) + first * op.width, outs};
    matmul_.multiply({&product, 1, patches, count * per_row, 0});
  }
}

void Program::depthwise_conv(const olv_op& op) {
  const float* weight = factors_[size_t(&op - ops_.data())].data();  // [rows, columns]
  matmul_.parallel_rows(tokens_.rows, 2 * op.size * op.width, [&](int64_t r) {
    const float* x = value(op, op.a) + r * op.width;
    float* y = value(op, op.out) + r * op.width;
    memset(y, 0, size_t(op.width) * 4);
    for (int64_t m = std::max<int64_t>(0, op.size - 1 - position_[size_t(r)]); m < op.size; ++m) {
      const float *from = x - (op.size - 1 - m) * op.width, *factor = weight + m * op.width;
      for (int64_t i = 0; i < op.width; ++i) y[i] += from[i] * factor[i];
    }
  });
}

void Program::relative_attention(const olv_op& op) {
  const float* relative = factors_[size_t(&op - ops_.data())].data();  // [rows back, columns]
  const int64_t d = op.width / op.heads;
  matmul_.parallel_rows(tokens_.rows, 4 * op.size * op.width, [&](int64_t r) {
    const int64_t seen = std::min<int64_t>(op.size, int64_t(position_[size_t(r)]) + 1);
    std::vector<float> share(static_cast<size_t>(seen));
    for (int64_t h = 0; h < op.heads; ++h) {
      const int64_t at = r * op.width + h * d;
      const float *q = value(op, op.a) + at, *k = value(op, op.b) + at, *v = value(op, op.c) + at;
      float most = -INFINITY, sum = 0;
      for (int64_t back = 0; back < seen; ++back) {
        const float score = dot(q, k - back * op.width, relative + back * op.width + h * d, d);
        share[size_t(back)] = op.scale * std::tanh(score / op.scale);
        most = std::max(most, share[size_t(back)]);
      }
      for (float& each : share) sum += each = std::exp(each - most);
      float* y = value(op, op.out) + at;
      memset(y, 0, size_t(d) * 4);
      for (int64_t back = 0; back < seen; ++back) {
        const float factor = share[size_t(back)] / sum;
        for (int64_t i = 0; i < d; ++i) y[i] += factor * v[i - back * op.width];
      }
    }
  });
}

}  // namespace olv
