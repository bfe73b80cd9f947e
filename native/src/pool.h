// A thread pool for short parallel loops: between loops workers spin for a while, then sleep.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace olv {

// Threads take chunks one at a time from a shared counter, and a loop ends when its chunks are done, without a barrier
// over all workers: a preempted worker delays only the chunk it has begun, and one that has not woken up delays nothing.
class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  int threads() const { return int(workers_.size()) + 1; }

  // Calls body(chunk, thread) for every chunk in [0, chunks). The caller takes part, as thread 0.
  template <class F>
  void run(int64_t chunks, F&& body) {
    if (chunks <= 0) return;
    if (chunks == 1 || workers_.empty()) {
      for (int64_t c = 0; c < chunks; ++c) body(c, 0);
      return;
    }
    run_job(chunks, [](void* f, int64_t chunk, int thread) { (*static_cast<F*>(f))(chunk, thread); }, (void*)&body);
  }

 private:
  using Call = void (*)(void*, int64_t chunk, int thread);
  void run_job(int64_t chunks, Call call, void* argument);
  void work(int thread);
  bool take(uint32_t generation, int thread);

  // The current loop: generation in the upper half, next chunk in the lower. A worker that wakes up late sees another
  // generation and takes no chunk.
  alignas(64) std::atomic<uint64_t> next_{0};
  alignas(64) std::atomic<int64_t> left_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> chunks_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> argument_{nullptr};
  std::vector<std::thread> workers_;
};

}  // namespace olv
