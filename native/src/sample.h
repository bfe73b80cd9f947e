// Sampling the next token from logits, bit for bit as in olivine/engine/sampling.py and noise.py.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sample_loops.h"

namespace olv {

// Token counts of one row for the penalties: in the window of the repetition penalty, and in the output. Counted once
// per call, then updated with each token drawn.
class History {
 public:
  // `drawn` is where the drawn tokens will be written, at most `most`.
  void begin(const olv_draw& how, int64_t vocabulary, const int32_t* drawn, int64_t most);
  void add(int32_t token);
  void penalize(float* logits) const;

 private:
  struct Entry {
    int32_t token, seen, made;
  };
  Entry* find(int32_t token);  // null if the token is not in the vocabulary
  int32_t at(int64_t index) const;

  const olv_draw* how_ = nullptr;
  const int32_t* drawn_ = nullptr;
  int64_t vocabulary_ = 0, length_ = 0, window_ = 0;  // window_: where the repetition penalty's history begins
  bool repetition_ = false, counts_ = false;
  std::vector<Entry> entries_;
  std::vector<int32_t> slots_;  // a hash table: an entry's index + 1
};

// Log-probabilities of a drawn token and of the likeliest tokens; null if not requested.
struct Report {
  double* logprob;
  int32_t* top_tokens;
  double* top_logprobs;
};

class Sampler {
 public:
  // Allocates memory for the vocabulary, so that a draw allocates nothing.
  void prepare(const SampleLoops& loops, int64_t vocabulary);
  // Draws the token at `position`; `made` tokens were drawn before it. Modifies the logits. OLV_OPEN: a token was drawn,
  // and the sequence may continue.
  olv_end draw(float* logits, int64_t count, const olv_draw& how, const History& history, int64_t made,
               uint32_t position, int32_t* token, const Report& report);

 private:
  struct Candidate {
    float z;
    int32_t id;
  };
  static bool before(const Candidate& a, const Candidate& b) { return a.z != b.z ? a.z > b.z : a.id < b.id; }

  bool scan(const float* x, int64_t count);
  int32_t choose(const float* x, int64_t count, const olv_sampling& how, uint32_t position);
  int32_t first_peak(const float* x, int64_t count) const;
  void likeliest(const float* x, int64_t count, int64_t most, Temper t);
  bool cut_to(uint64_t wanted);
  uint64_t total(const float* x, int64_t count, Temper t, double scale);
  bool is_in_nucleus(const float* x, int64_t count, Temper t, uint64_t wanted, int32_t token);
  Place nucleus(const float* x, int64_t count, Temper t, uint64_t wanted);
  int32_t draw_all(const float* x, int64_t count, Temper t, Place cut, uint32_t key);
  void report(const float* x, int64_t count, int32_t token, int64_t most, const Report& report);

  const SampleLoops* loops_ = nullptr;
  float peak_ = 0;
  std::vector<float> peaks_, sorted_peaks_;
  std::vector<Candidate> candidates_;
  std::vector<uint64_t> buckets_;
  // Of the current block.
  float z_[kTokens];
  uint64_t weight_[kTokens];
  int32_t found_[kTokens];
};

uint32_t noise_hash(uint64_t seed, uint32_t position, uint32_t token);
float noise(uint32_t hash);

}  // namespace olv
