// The C ABI: translates exceptions into error codes and messages.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "blocks.h"
#include "program.h"
#include "quantize.h"
#include "shm.h"

namespace olv {
namespace {

thread_local std::string last_error;
thread_local Sampler sampler;  // of olv_sample
thread_local History history;

template <class F>
int guarded(F&& body) {
  try {
    last_error.clear();
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "an unknown error in native code";
  }
  return 1;
}

}  // namespace

}  // namespace olv

using namespace olv;

struct olv_pool : Pool {
  using Pool::Pool;
};
struct olv_program : Program {
  using Program::Program;
};
struct olv_shm : Shm {
  using Shm::Shm;
};

extern "C" {

int olv_abi(void) { return OLV_ABI; }
const char* olv_last_error(void) { return last_error.c_str(); }
const char* olv_isa(void) { return kernels().name; }

int olv_set_isa(const char* name) { return use_isa(name) ? 0 : 1; }

olv_pool* olv_pool_new(int threads) {
  olv_pool* pool = nullptr;
  guarded([&] { pool = new olv_pool(threads < 1 ? 1 : threads > 1024 ? 1024 : threads); });
  return pool;
}

void olv_pool_free(olv_pool* pool) { delete pool; }

int64_t olv_shm_bytes(int ranks, int stages) { return Shm::bytes(ranks, stages); }

olv_shm* olv_shm_join(void* memory, int ranks, int stages, int number, int64_t parent) {
  olv_shm* shm = nullptr;
  guarded([&] { shm = new olv_shm(memory, ranks, stages, number, parent); });
  return shm;
}

void olv_shm_leave(olv_shm* shm) { delete shm; }
void olv_shm_close(olv_shm* shm) { shm->close(); }

int olv_shm_meet(olv_shm* shm, int kind, const float* x, int64_t x_width, float* out, int64_t width, int64_t rows) {
  return guarded([&] { shm->meet(olv_kind(kind), x, x_width, out, width, rows); });
}

olv_program* olv_program_new(olv_pool* pool, const olv_plan* plan) {
  olv_program* program = nullptr;
  guarded([&] { program = new olv_program(*pool, *plan); });
  return program;
}

void olv_program_free(olv_program* program) { delete program; }

int olv_one_kind(const olv_program* program) { return program->one_kind(); }

void olv_profile(olv_program* program, double* seconds) { program->profile(seconds); }

int olv_step(olv_program* program, const olv_batch* batch, float* hidden, float* logits) {
  return guarded([&] { program->step(*batch, hidden, logits); });
}

int olv_linear(olv_pool* pool, const olv_weight* w, const float* x, int64_t rows, int generated, float* y) {
  return guarded([&] {
    Matmul matmul(*pool, kernels());
    const Product product{w, y, w->n};
    matmul.multiply({&product, 1, x, generated ? 0 : rows, generated ? rows : 0});
  });
}

int olv_generate(olv_program* program, const olv_batch* batch, const olv_draw* draws, int64_t n, const olv_drawn* out,
                 olv_ready ready) {
  return guarded([&] { program->generate(*batch, draws, n, *out, ready); });
}

int olv_sample(float* logits, int64_t count, const olv_draw* how, uint32_t position, const olv_drawn* out) {
  return guarded([&] {
    if (*out->ends != OLV_OPEN) return;
    sampler.prepare(kernels().sample_loops(), count);
    history.begin(*how, count, out->tokens, 1);
    const Report report{out->logprobs, out->top_tokens, out->top_logprobs};
    *out->ends = sampler.draw(logits, count, *how, history, 0, position, out->tokens, report);
    *out->counts = *out->ends == OLV_OPEN;
  });
}

void olv_noise(uint64_t seed, uint32_t position, const uint32_t* tokens, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = noise(noise_hash(seed, position, tokens[i]));
}

int olv_dequantize(const olv_weight* w, int64_t row, float* y) {
  return guarded([&] { kernels().dequantize(*w, row, y); });
}

int olv_convert(const olv_weight* w, int type, uint8_t* to) {
  return guarded([&] {
    if (!can_quantize(type)) throw std::runtime_error("nothing is converted to this type");
    if (w->k % kTypes[type].block) throw std::runtime_error("a row is not a whole number of blocks");
    const QuantizeRow quantize = kernels().quantize_row;
    const float most = largest_value(type);
    std::vector<float> row(size_t(w->k));
    for (int64_t r = 0; r < w->n; ++r) {
      kernels().dequantize(*w, r, row.data());
      for (const float x : row) {
        if (!std::isfinite(x)) throw std::runtime_error("holds a value that is not a number, or infinite");
        if (std::fabs(x) > most) throw std::runtime_error("holds a value beyond the reach of the type");
      }
      quantize(type, row.data(), w->k, to);
      to += w->k / kTypes[type].block * kTypes[type].bytes;
    }
  });
}

double olv_read_bandwidth(olv_pool* pool, int64_t bytes, int repeats) {
  double best = 0;
  guarded([&] {
    constexpr int64_t piece = 1 << 18, least = 1 << 26;
    const int64_t pieces = std::max<int64_t>(1, (bytes + piece - 1) / piece);
    const int64_t passes = std::max<int64_t>(1, least / (pieces * piece));  // longer than threads take to wake up
    Buffer owned;
    uint8_t* memory = owned.array<uint8_t>(pieces * piece);
    pool->run(pieces, [&](int64_t chunk, int) { memset(memory + chunk * piece, 1, piece); });
    for (int r = 0; r < repeats; ++r) {
      const auto start = std::chrono::steady_clock::now();
      pool->run(pieces * passes, [&](int64_t chunk, int) {
        volatile double sink = kernels().read(memory + chunk % pieces * piece, piece);
        (void)sink;
      });
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      best = std::max(best, double(pieces * passes * piece) / took.count());
    }
  });
  return best;
}

double olv_peak(olv_pool* pool, int kind, int repeats) {
  double best = 0;
  guarded([&] {
    for (int r = 0; r < repeats; ++r) {
      std::atomic<double> done{0};
      const auto start = std::chrono::steady_clock::now();
      pool->run(8 * pool->threads(), [&](int64_t, int) {
        const double operations = kernels().peak(kind);
        double sum = done.load();
        while (!done.compare_exchange_weak(sum, sum + operations)) {
        }
      });
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      best = std::max(best, done.load() / took.count());
    }
  });
  return best;
}

}  // extern "C"
