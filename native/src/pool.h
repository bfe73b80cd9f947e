// A thread pool for short parallel loops: between loops workers spin for a while, then sleep.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace olv {

// Consecutive bytes of a weight.
struct Bytes {
  const uint8_t* data = nullptr;
  int64_t size = 0;
};

// Each thread has a share of the chunks of a loop, the same one for the same number of chunks: what it reads and writes
// stays in its caches (and, on a machine with several memories, in its own). A thread whose share is done takes chunks of
// others. A loop ends when its chunks are done, without a barrier over all workers: a preempted or slow one delays only
// the chunk it has begun, and one that has not woken up delays nothing.
class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  int threads() const { return threads_; }

  // Calls body(chunk, thread) for every chunk in [0, chunks). The caller takes part, as thread 0.
  template <class F>
  void run(int64_t chunks, F&& body) {
    if (chunks <= 0) return;
    if (chunks == 1 || workers_.empty()) {
      for (int64_t c = 0; c < chunks; ++c) body(c, 0);
      return;
    }
    using Body = std::remove_reference_t<F>;
    run_job(chunks, [](void* f, int64_t chunk, int thread) { (*static_cast<Body*>(f))(chunk, thread); }, (void*)&body);
  }

  // What the loop after the next ones reads: threads that wait prefetch the begin of their share of it.
  static constexpr int kAhead = 4;
  void read_ahead(const Bytes* weights, int count);

 private:
  using Call = void (*)(void*, int64_t chunk, int thread);
  struct Job {
    uint64_t number;
    int64_t chunks;
    Call call;
    void* argument;
    Bytes ahead[kAhead];
  };
  // The number of the loop in the upper bits, the next chunk of the share in the lower: a worker that wakes up late sees
  // another number and takes no chunk. On a cache line of its own.
  static constexpr int kChunkBits = 24;
  struct alignas(64) Share {
    std::atomic<uint64_t> next{0};
  };
  // What is left to prefetch of a thread's share of the weights.
  struct Ahead {
    const uint8_t* first = nullptr;
    const uint8_t *at = nullptr, *end = nullptr;
    bool prefetch();  // some cache lines; false if there are none left
  };

  void run_job(int64_t chunks, Call call, void* argument);
  void work(int thread);
  void stop();
  bool read(Job& job) const;
  void take_chunks(const Job& job, int thread);
  int64_t take(const Job& job, int thread);
  void set_ahead(const Bytes* weights, int thread, Ahead& ahead) const;

  // The current loop, valid if its number is the same before and after it is read: 0 while the fields are written.
  struct alignas(64) Published {
    std::atomic<uint64_t> number{0};
    std::atomic<int64_t> chunks{0};
    std::atomic<Call> call{nullptr};
    std::atomic<void*> argument{nullptr};
    struct {
      std::atomic<const uint8_t*> data{nullptr};
      std::atomic<int64_t> size{0};
    } ahead[kAhead];
  } published_;
  alignas(64) std::atomic<uint32_t> generation_{0};  // changes with every loop: workers wait for it
  alignas(64) std::atomic<int64_t> left_{0};  // chunks that are not done
  alignas(64) std::atomic<int> open_{0};      // shares with chunks that nobody has taken
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  const int threads_;
  std::unique_ptr<Share[]> shares_;  // by thread
  uint64_t number_ = 0;
  Bytes next_[kAhead];
  Ahead ahead_;  // of the caller
  std::vector<std::thread> workers_;
};

}  // namespace olv
