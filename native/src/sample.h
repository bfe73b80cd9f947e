// The next token from logits: olivine/engine/sampling.py and noise.py, step by step and bit for bit.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "olivine.h"

namespace olv {

class Sampler {
 public:
  // The token at `position` of its sequence. Throws where there is none to choose.
  int32_t sample(const float* logits, int64_t count, const olv_sampling& how, uint32_t position);

 private:
  struct Candidate {
    float value;
    int32_t id;
  };
  void likeliest(const float* logits, int64_t count, float temperature, std::size_t most);

  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

uint32_t noise_hash(uint64_t seed, uint32_t position, uint32_t token);
float noise(uint32_t hash);

}  // namespace olv
