// Compiled without fused multiply-adds: the noise is defined by operations that are rounded one by one.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "numbers.h"

namespace olv {
namespace {

uint32_t mix(uint32_t x) {
  const uint32_t state = x * 747796405u + 2891336453u;
  const uint32_t word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
  return word >> 22 ^ word;
}

// ln of a positive normal float by exponent and an odd polynomial.
float ln(float x) {
  const uint32_t bits = bits_of(x);
  const int32_t exponent = int32_t(bits - 0x3F3504F3u) >> 23;
  const float mantissa = from_bits(bits - (uint32_t(exponent) << 23));
  const float s = (mantissa - 1.f) / (mantissa + 1.f), t = s * s;
  float series = float(2.0 / 9);
  series = series * t + float(2.0 / 7);
  series = series * t + float(2.0 / 5);
  series = series * t + float(2.0 / 3);
  series = series * t + 2.f;
  return float(exponent) * 0.6931471805599453f + s * series;
}

}  // namespace

uint32_t noise_hash(uint64_t seed, uint32_t position, uint32_t token) {
  uint32_t key = mix(uint32_t(seed));
  key = mix(key ^ uint32_t(seed >> 32));
  key = mix(key ^ position);
  return mix(mix(token) ^ key);
}

float noise(uint32_t hash) {
  float w = (float(hash) + 0.5f) * 0x1p-32f;
  w = std::min(w, 1.f - 0x1p-24f);
  const float rest = 1.f - w;
  if (rest == 1.f) return -ln(w);
  return -ln(w * (-ln(rest) / (1.f - rest)));
}

// The `most` largest logits over the temperature, in order; of equals the lowest id first.
void Sampler::likeliest(const float* logits, int64_t count, float temperature, size_t most) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.value != b.value ? a.value > b.value : a.id < b.id;
  };
  candidates_.resize(size_t(count));
  for (int32_t i = 0; i < count; ++i) candidates_[size_t(i)] = {logits[i] / temperature, i};
  if (most < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + ptrdiff_t(most), candidates_.end(), before);
    candidates_.resize(most);
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
}

int32_t Sampler::sample(const float* logits, int64_t count, const olv_sampling& how, uint32_t position) {
  int32_t best = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (std::isnan(logits[i])) throw std::runtime_error("the model produced NaN: its weights or its input are broken");
    if (logits[i] > logits[best]) best = i;
  }
  if (std::isinf(logits[best]) && logits[best] < 0) throw std::runtime_error("no token is allowed here");
  if (how.temperature == 0) return best;

  const bool top_k = how.top_k > 0 && how.top_k < count;
  const auto draw = [&](auto&& value_of, int64_t n, auto&& id_of) {
    int32_t chosen = -1;
    float highest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float value = value_of(i);
      if (std::isinf(value) && value < 0) continue;
      const float noisy = value + noise(noise_hash(how.seed, position, uint32_t(id_of(i))));
      if (chosen < 0 || noisy > highest || (noisy == highest && id_of(i) < chosen)) {
        chosen = int32_t(id_of(i));
        highest = noisy;
      }
    }
    return chosen;
  };
  if (!top_k && how.top_p >= 1 && how.min_p <= 0)
    return draw([&](int64_t i) { return logits[i] / how.temperature; }, count, [](int64_t i) { return i; });

  likeliest(logits, count, how.temperature, top_k ? size_t(how.top_k) : size_t(count));
  const float peak = candidates_[0].value;
  weights_.resize(candidates_.size());
  for (size_t i = 0; i < candidates_.size(); ++i) weights_[i] = std::exp(double(candidates_[i].value - peak));
  size_t kept = candidates_.size();
  if (how.top_p < 1) {
    double total = 0;
    for (const double w : weights_) total += w;
    const double wanted = how.top_p * total;
    double mass = 0;
    for (kept = 0; kept < weights_.size();) {
      mass += weights_[kept++];
      if (mass >= wanted) break;
    }
  }
  if (how.min_p > 0)
    while (kept > 1 && weights_[kept - 1] < how.min_p * weights_[0]) --kept;
  return draw([&](int64_t i) { return candidates_[size_t(i)].value; }, int64_t(kept),
              [&](int64_t i) { return int64_t(candidates_[size_t(i)].id); });
}

}  // namespace olv
