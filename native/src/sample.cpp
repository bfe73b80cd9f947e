// Compiled without fused multiply-adds: the definition rounds every operation.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "sample_exact.h"

namespace olv {
namespace {

constexpr float kNever = -__builtin_inff();
constexpr double kUnit = 0x1p32;      // fixed-point unit of the weights for top-p
constexpr double kFineUnit = 0x1p40;  // fixed-point unit of the weights for log-probabilities
constexpr int64_t kFirstTry = 256;    // top-p first tries this many of the likeliest tokens
constexpr float kSlices = 128;        // histogram buckets per unit of z
constexpr float kLightest = -23;      // below this z a weight is 0

uint64_t weight_of(float z) { return integer_of(double(exponential(z)) * kUnit); }

uint32_t key_of(uint64_t seed, uint32_t position) {
  uint32_t key = mix(uint32_t(seed));
  key = mix(key ^ uint32_t(seed >> 32));
  return mix(key ^ position);
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

// The token with the largest z + noise so far; ties go to the lowest id.
struct Leader {
  int32_t id = -1;
  float noisy = kNever;

  void offer(float z, int32_t candidate, uint32_t key) {
    if (z == kNever) return;
    const float value = z + noise(mix(mix(uint32_t(candidate)) ^ key));
    if (id < 0 || value > noisy || (value == noisy && candidate < id)) *this = {candidate, value};
  }
};

int64_t blocks_of(int64_t count) { return (count + kTokens - 1) / kTokens; }

bool is_among(const int32_t* tokens, int64_t count, int32_t token) {
  return std::find(tokens, tokens + count, token) != tokens + count;
}

void apply_mask(float* x, int64_t count, const uint32_t* mask) {
  for (int64_t first = 0; first < count; first += 32) {
    const uint32_t word = mask[first / 32];
    if (word == ~0u) continue;
    for (int64_t i = 0; i < std::min<int64_t>(32, count - first); ++i)
      x[first + i] = word >> i & 1 ? x[first + i] : kNever;
  }
}

}  // namespace

const SampleLoops& plain_sample_loops() {
  static const SampleLoops loops = {scan, weigh, weigh_before, contenders};
  return loops;
}

uint32_t noise_hash(uint64_t seed, uint32_t position, uint32_t token) {
  return mix(mix(token) ^ key_of(seed, position));
}

float noise(uint32_t hash) {
  float w = (float(hash) + 0.5f) * 0x1p-32f;
  w = std::min(w, 1.f - 0x1p-24f);
  const float rest = 1.f - w;
  if (rest == 1.f) return -ln(w);
  return -ln(w * (-ln(rest) / (1.f - rest)));
}

void History::begin(const olv_draw& how, int64_t vocabulary, const int32_t* drawn, int64_t most) {
  how_ = &how;
  drawn_ = drawn;
  vocabulary_ = vocabulary;
  length_ = how.prompt_count + how.output_count;
  window_ = how.sampling.repeat_last_n < 0 ? 0 : std::max<int64_t>(0, length_ - how.sampling.repeat_last_n);
  repetition_ = how.sampling.repetition_penalty != 1;
  counts_ = how.sampling.frequency_penalty != 0 || how.sampling.presence_penalty != 0;
  entries_.clear();
  if (!repetition_ && !counts_) return;
  size_t slots = 64;
  while (slots < size_t(2 * (length_ + most))) slots *= 2;
  slots_.assign(slots, 0);
  entries_.reserve(slots / 2);
  if (repetition_)
    for (int64_t i = window_; i < length_; ++i)
      if (Entry* e = find(at(i))) ++e->seen;
  if (counts_)
    for (int64_t i = 0; i < how.output_count; ++i)
      if (Entry* e = find(how.output[i])) ++e->made;
}

void History::add(int32_t token) {
  if (!repetition_ && !counts_) return;
  Entry* e = find(token);
  ++e->seen;
  ++e->made;
  ++length_;
  if (!repetition_ || how_->sampling.repeat_last_n < 0 || length_ - window_ <= how_->sampling.repeat_last_n) return;
  if (Entry* gone = find(at(window_))) --gone->seen;
  ++window_;
}

void History::penalize(float* logits) const {
  const olv_sampling& how = how_->sampling;
  for (const Entry& e : entries_) {
    float x = logits[e.token];
    if (repetition_ && e.seen) x = x > 0 ? x / how.repetition_penalty : x * how.repetition_penalty;
    if (counts_ && e.made) {
      x -= how.frequency_penalty * float(e.made);
      x -= how.presence_penalty;
    }
    logits[e.token] = x;
  }
}

History::Entry* History::find(int32_t token) {
  if (token < 0 || token >= vocabulary_) return nullptr;
  const size_t last = slots_.size() - 1;
  for (size_t slot = mix(uint32_t(token)) & last;; slot = (slot + 1) & last) {
    if (!slots_[slot]) {
      entries_.push_back({token, 0, 0});
      slots_[slot] = int32_t(entries_.size());
    }
    Entry& e = entries_[size_t(slots_[slot] - 1)];
    if (e.token == token) return &e;
  }
}

int32_t History::at(int64_t index) const {
  if (index < how_->prompt_count) return how_->prompt[index];
  index -= how_->prompt_count;
  return index < how_->output_count ? how_->output[index] : drawn_[index - how_->output_count];
}

void Sampler::prepare(const SampleLoops& loops, int64_t vocabulary) {
  loops_ = &loops;
  peaks_.resize(size_t(blocks_of(vocabulary)));
  sorted_peaks_.resize(peaks_.size());
  candidates_.reserve(size_t(vocabulary));
  buckets_.resize(size_t(-kLightest * kSlices) + 1);
}

olv_end Sampler::draw(float* x, int64_t count, const olv_draw& how, const History& history, int64_t made,
                      uint32_t position, int32_t* token, const Report& report) {
  for (int64_t i = 0; i < how.sampling.bias_count; ++i) x[how.sampling.bias_tokens[i]] += how.sampling.bias[i];
  history.penalize(x);
  if (!scan(x, count)) return OLV_BROKEN;
  const bool first = made == 0, too_early = made < how.at_least && how.stop_count;
  if ((first && how.mask) || too_early) {
    if (first && how.mask) apply_mask(x, count, how.mask);
    for (int64_t i = 0; too_early && i < how.stop_count; ++i)
      if (how.stop[i] >= 0 && how.stop[i] < count) x[how.stop[i]] = kNever;
    scan(x, count);
  }
  if (peak_ == kNever) return OLV_NOTHING;
  const bool forced = first && how.forced >= 0;
  *token = forced ? how.forced : choose(x, count, how.sampling, position);
  if (!forced && is_among(how.stop, how.stop_count, *token)) return OLV_STOPPED;
  if (how.logprobs >= 0) this->report(x, count, *token, how.logprobs, report);
  return OLV_OPEN;
}

bool Sampler::scan(const float* x, int64_t count) {
  if (!loops_->scan(x, count, peaks_.data())) return false;
  peak_ = *std::max_element(peaks_.begin(), peaks_.begin() + blocks_of(count));
  return true;
}

int32_t Sampler::first_peak(const float* x, int64_t count) const {
  const int64_t block = std::find(peaks_.begin(), peaks_.end(), peak_) - peaks_.begin();
  return int32_t(std::find(x + block * kTokens, x + count, peak_) - x);
}

int32_t Sampler::choose(const float* x, int64_t count, const olv_sampling& how, uint32_t position) {
  if (how.temperature == 0) return first_peak(x, count);
  const Temper t{peak_, how.temperature};
  const uint32_t key = key_of(how.seed, position);
  Place cut{how.log_min_p, count};  // the last token that is kept
  bool listed = false;  // whether candidates_ holds all tokens that are kept
  if (how.top_k > 0 && how.top_k < count) {
    likeliest(x, count, how.top_k, t);
    uint64_t mass = 0;
    if (how.top_p < 1) {
      for (const Candidate& c : candidates_) mass += weight_of(c.z);
      cut_to(uint64_t(std::ceil(how.top_p * double(mass))));
    }
    listed = true;
  } else if (how.top_p < 1) {
    const uint64_t wanted = uint64_t(std::ceil(how.top_p * double(total(x, count, t, kUnit))));
    if (wanted <= uint64_t(kFirstTry) << 32) {
      likeliest(x, count, std::min(count, kFirstTry), t);
      listed = cut_to(wanted);
    }
    if (!listed) {
      // If the winner among all tokens is kept, it also wins among the kept: most draws need not compute the cut.
      const int32_t winner = draw_all(x, count, t, cut, key);
      if (is_in_nucleus(x, count, t, wanted, winner)) return winner;
      const Place other = nucleus(x, count, t, wanted);
      if (other.z >= cut.z) cut = other;
    }
  }
  if (!listed) return draw_all(x, count, t, cut, key);
  Leader leader;
  for (const Candidate& c : candidates_)
    if (c.z >= how.log_min_p) leader.offer(c.z, c.id, key);
  return leader.id;
}

// The `most` likeliest tokens, sorted by z, then by id.
void Sampler::likeliest(const float* x, int64_t count, int64_t most, Temper t) {
  candidates_.clear();
  const int64_t blocks = blocks_of(count);
  // `most` blocks have a maximum at or above the floor, so at least `most` tokens do.
  float floor = kNever;
  if (most <= blocks) {
    const auto place = sorted_peaks_.begin() + (most - 1);
    std::copy(peaks_.begin(), peaks_.begin() + blocks, sorted_peaks_.begin());
    std::nth_element(sorted_peaks_.begin(), place, sorted_peaks_.begin() + blocks, std::greater<float>());
    floor = tempered(*place, t);
  }
  int64_t equals = most;
  for (int64_t b = 0; b < blocks; ++b) {
    if (tempered(peaks_[size_t(b)], t) < floor) continue;
    for (int64_t i = b * kTokens; i < std::min(count, (b + 1) * kTokens); ++i) {
      const float z = tempered(x[i], t);
      if (z > floor || (z == floor && equals-- > 0)) candidates_.push_back({z, int32_t(i)});
    }
  }
  if (most < int64_t(candidates_.size())) {
    std::nth_element(candidates_.begin(), candidates_.begin() + most, candidates_.end(), before);
    candidates_.resize(size_t(most));
  }
  std::sort(candidates_.begin(), candidates_.end(), before);
}

// Cuts the candidates to the shortest prefix with the wanted mass. False if all of them together have less.
bool Sampler::cut_to(uint64_t wanted) {
  uint64_t mass = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    mass += weight_of(candidates_[i].z);
    if (mass < wanted) continue;
    candidates_.resize(i + 1);
    return true;
  }
  return false;
}

uint64_t Sampler::total(const float* x, int64_t count, Temper t, double scale) {
  uint64_t sum = 0;
  for (int64_t b = 0; b < blocks_of(count); ++b) {
    if (tempered(peaks_[size_t(b)], t) < -32) continue;
    const int64_t first = b * kTokens;
    sum += loops_->weigh(x + first, std::min(kTokens, count - first), t, scale, z_, weight_);
  }
  return sum;
}

bool Sampler::is_in_nucleus(const float* x, int64_t count, Temper t, uint64_t wanted, int32_t token) {
  const Place place{tempered(x[token], t), token};
  uint64_t before = 0;
  for (int64_t b = 0; b < blocks_of(count); ++b) {
    if (tempered(peaks_[size_t(b)], t) < place.z) continue;
    const int64_t first = b * kTokens;
    before += loops_->weigh_before(x + first, std::min(kTokens, count - first), first, t, kUnit, place);
  }
  return before < wanted;
}

// Where top-p cuts if the first candidates have too little mass: a histogram of z finds the bucket, sorting it the token.
Place Sampler::nucleus(const float* x, int64_t count, Temper t, uint64_t wanted) {
  const auto slice = [](float z) { return size_t(int32_t(-z * kSlices)); };
  const auto over_heavy = [&](auto&& body) {
    for (int64_t b = 0; b < blocks_of(count); ++b) {
      if (tempered(peaks_[size_t(b)], t) < kLightest) continue;
      const int64_t first = b * kTokens, n = std::min(kTokens, count - first);
      loops_->weigh(x + first, n, t, kUnit, z_, weight_);
      for (int64_t i = 0; i < n; ++i)
        if (z_[i] >= kLightest) body(first + i, z_[i], weight_[i]);
    }
  };
  std::fill(buckets_.begin(), buckets_.end(), 0);
  over_heavy([&](int64_t, float z, uint64_t weight) { buckets_[slice(z)] += weight; });
  size_t crossing = 0;
  uint64_t mass = 0;
  while (mass + buckets_[crossing] < wanted) mass += buckets_[crossing++];
  candidates_.clear();
  over_heavy([&](int64_t i, float z, uint64_t) {
    if (slice(z) == crossing) candidates_.push_back({z, int32_t(i)});
  });
  std::sort(candidates_.begin(), candidates_.end(), before);
  cut_to(wanted - mass);
  return {candidates_.back().z, candidates_.back().id};
}

int32_t Sampler::draw_all(const float* x, int64_t count, Temper t, Place cut, uint32_t key) {
  Leader leader;
  // Several logits may be rounded to the maximum's z = 0, and top-p may cut between those.
  const int64_t first_best = first_peak(x, count);
  leader.offer(0, int32_t(cut.z == 0 ? std::min(first_best, cut.id) : first_best), key);
  for (int64_t b = 0; b < blocks_of(count); ++b) {
    // No noise is above 22.88.
    const float highest = tempered(peaks_[size_t(b)], t);
    if (highest < cut.z || highest + 23 < leader.noisy) continue;
    const int64_t first = b * kTokens, n = std::min(kTokens, count - first);
    if (!loops_->contenders(x + first, n, uint32_t(first), key, t, leader.noisy, found_)) continue;
    for (int64_t i = 0; i < n; ++i) {
      if (!found_[i]) continue;
      const float z = tempered(x[first + i], t);
      if (z > cut.z || (z == cut.z && first + i <= cut.id)) leader.offer(z, int32_t(first + i), key);
    }
  }
  return leader.id;
}

void Sampler::report(const float* x, int64_t count, int32_t token, int64_t most, const Report& report) {
  const double mass = double(total(x, count, {peak_, 1}, kFineUnit)) / kFineUnit;
  // The peak's own share of the mass is 1. log would need glibc 2.29.
  const double whole = double(peak_) + std::log1p(mass - 1);
  *report.logprob = double(x[token]) - whole;
  most = std::min(most, count);
  if (most) likeliest(x, count, most, {0, 1});
  for (int64_t i = 0; i < most; ++i) {
    report.top_tokens[i] = candidates_[size_t(i)].id;
    report.top_logprobs[i] = double(x[candidates_[size_t(i)].id]) - whole;
  }
}

}  // namespace olv
