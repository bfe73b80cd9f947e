#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace olv {
namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// 30 µs on an Emerald Rapids core: longer than the serial work between two loops of a step, and short enough that an
// idle pool uses almost no CPU time.
constexpr int kSpins = 2000;

}  // namespace

Pool::Pool(int threads) {
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

Pool::~Pool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::run_job(int64_t chunks, Call call, void* argument) {
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  // Closes the previous loop before its fields are overwritten: from here on no late worker can take a chunk of it.
  next_.store(uint64_t(generation) << 32 | 0xffffffffu);
  chunks_.store(uint32_t(chunks), std::memory_order_relaxed);
  call_.store(call, std::memory_order_relaxed);
  argument_.store(argument, std::memory_order_relaxed);
  left_.store(chunks, std::memory_order_relaxed);
  next_.store(uint64_t(generation) << 32);
  generation_.store(generation);
  if (sleeping_.load() > 0) generation_.notify_all();
  while (take(generation, 0)) {
  }
  for (int spins = 0; left_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpins) pause();
    else std::this_thread::yield();  // a worker was preempted in the middle of a chunk: yield this core to it
  }
}

bool Pool::take(uint32_t generation, int thread) {
  uint64_t next = next_.load(std::memory_order_acquire);
  do {
    if (uint32_t(next >> 32) != generation || uint32_t(next) >= chunks_.load(std::memory_order_relaxed)) return false;
  } while (!next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel));
  call_.load(std::memory_order_relaxed)(argument_.load(std::memory_order_relaxed), uint32_t(next), thread);
  left_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

void Pool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    uint32_t generation = generation_.load(std::memory_order_acquire);
    for (int spins = 0; generation == seen && spins < kSpins; ++spins) {
      pause();
      generation = generation_.load(std::memory_order_acquire);
    }
    if (generation == seen) {
      sleeping_.fetch_add(1);
      generation_.wait(seen);
      sleeping_.fetch_sub(1);
      continue;
    }
    if (stop_.load()) return;
    seen = generation;
    while (take(generation, thread)) {
    }
  }
}

}  // namespace olv
