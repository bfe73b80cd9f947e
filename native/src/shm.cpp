#include "shm.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <ctime>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif

#include "pause.h"

namespace olv {
namespace {

constexpr int64_t kSlot = 1 << 16;  // floats: two slots of each rank stay in a core's cache
constexpr int kSlots = 4;           // of a rank: two to all of its stage, two to the next stage
// Some 60 µs: longer than ranks with equal work are apart. A rank that waits longer sleeps.
constexpr int kSpins = 4000;
constexpr int64_t kNap = 100'000'000;  // ns, after which a sleeping rank looks whether the others are still there

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
  const timespec limit{0, kNap};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
#else
  (void)word, (void)value;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void wake(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

bool has_ended(int64_t parent) {
#if defined(_WIN32)
  (void)parent;
  return false;
#else
  return parent && getppid() != parent;
#endif
}

}  // namespace

// A count that one rank raises and others wait for.
struct alignas(64) Shm::Word {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> sleepers;
};

struct Shm::Member {
  Word brought;  // pieces that are in this rank's first two slots
  Word sent;     // pieces that are in its other slots
  Word taken;    // pieces that it has taken out of the slots of the stage before
  alignas(64) std::atomic<int64_t> width[2];  // columns of what it brings to an all-gather, by slot
};

int64_t Shm::bytes(int ranks, int stages) {
  return int64_t(sizeof(Word)) + int64_t(ranks) * stages * int64_t(sizeof(Member) + kSlots * kSlot * sizeof(float));
}

Shm::Shm(void* memory, int ranks, int stages, int number, int64_t parent)
    : closed_(static_cast<Word*>(memory)),
      members_(reinterpret_cast<Member*>(closed_ + 1)),
      slots_(reinterpret_cast<float*>(members_ + ranks * stages)),
      ranks_(ranks),
      stages_(stages),
      first_(number / ranks * ranks),
      number_(number),
      parent_(parent) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);
  if (ranks < 1 || stages < 1 || number < 0 || number >= ranks * stages) throw std::invalid_argument("no such rank");
}

float* Shm::slot(int member, int which) const { return slots_ + (int64_t(member) * kSlots + which) * kSlot; }

void Shm::meet(olv_kind kind, const float* x, int64_t x_width, float* out, int64_t width, int64_t rows) {
  switch (kind) {
    case OLV_ALL_REDUCE: return all_reduce(x, out, rows * width);
    case OLV_ALL_GATHER: return all_gather(x, x_width, out, width, rows);
    case OLV_SEND: return send(x, rows * x_width);
    case OLV_RECEIVE: return receive(out, rows * width);
    default: throw std::invalid_argument("ranks do not meet in this op");
  }
}

void Shm::close() {
  closed_->count.store(1);
  for (int m = 0; m < ranks_ * stages_; ++m)
    for (Word* word : {&members_[m].brought, &members_[m].sent, &members_[m].taken}) wake(word->count);
}

// Sums are added in the order of the ranks, whatever the number of rows: all ranks have the same bits.
void Shm::all_reduce(const float* x, float* out, int64_t count) {
  for (int64_t at = 0; at < count; at += kSlot) {
    const int64_t n = std::min(kSlot, count - at);
    const uint32_t piece = arrive(x + at, n);
    float* y = out + at;
    for (int rank = 0; rank < ranks_; ++rank) {
      const float* part = wait_for(rank, piece);
      if (rank == 0) memcpy(y, part, size_t(n) * 4);
      else
        for (int64_t i = 0; i < n; ++i) y[i] += part[i];
    }
  }
}

// Every rank brings its rows as one run of numbers, in as many pieces as the widest has.
void Shm::all_gather(const float* x, int64_t x_width, float* out, int64_t width, int64_t rows) {
  Member& me = members_[number_];
  int64_t widest = x_width;
  for (int64_t at = 0; at < rows * widest; at += kSlot) {
    const int64_t mine = std::clamp<int64_t>(rows * x_width - at, 0, kSlot);
    const uint32_t next = me.brought.count.load(std::memory_order_relaxed);
    me.width[next % 2].store(x_width, std::memory_order_relaxed);  // `arrive` publishes it
    const uint32_t piece = arrive(x + (mine ? at : 0), mine);
    int64_t start = 0;  // the first of a rank's columns
    for (int rank = 0; rank < ranks_; ++rank) {
      const float* part = wait_for(rank, piece);
      const int64_t columns = members_[first_ + rank].width[piece % 2].load(std::memory_order_relaxed);
      widest = std::max(widest, columns);
      if (start + columns > width) throw std::runtime_error("the ranks have other columns than the plan says");
      const int64_t end = std::min(at + kSlot, rows * columns);
      for (int64_t i = at; i < end;) {
        const int64_t column = i % columns, n = std::min(columns - column, end - i);
        memcpy(out + i / columns * width + start + column, part + (i - at), size_t(n) * 4);
        i += n;
      }
      start += columns;
    }
  }
}

void Shm::send(const float* x, int64_t count) {
  Member &me = members_[number_], &next = members_[number_ + ranks_];
  for (int64_t at = 0; at < count; at += kSlot) {
    const uint32_t piece = me.sent.count.load(std::memory_order_relaxed);
    wait(next.taken, piece - 1);  // what was in the slot two pieces ago
    memcpy(slot(number_, 2 + int(piece % 2)), x + at, size_t(std::min(kSlot, count - at)) * 4);
    advance(me.sent);
  }
}

void Shm::receive(float* out, int64_t count) {
  Member &me = members_[number_], &before = members_[number_ - ranks_];
  for (int64_t at = 0; at < count; at += kSlot) {
    const uint32_t piece = me.taken.count.load(std::memory_order_relaxed);
    wait(before.sent, piece + 1);
    memcpy(out + at, slot(number_ - ranks_, 2 + int(piece % 2)), size_t(std::min(kSlot, count - at)) * 4);
    advance(me.taken);
  }
}

// Brings a piece; its number. The slot is free: whoever brought the piece before this one had read the one before that,
// and this rank has waited for all of them.
uint32_t Shm::arrive(const float* x, int64_t count) {
  Word& word = members_[number_].brought;
  const uint32_t piece = word.count.load(std::memory_order_relaxed);
  if (count) memcpy(slot(number_, int(piece % 2)), x, size_t(count) * 4);
  advance(word);
  return piece;
}

const float* Shm::wait_for(int rank, uint32_t piece) const {
  wait(members_[first_ + rank].brought, piece + 1);
  return slot(first_ + rank, int(piece % 2));
}

void Shm::wait(Word& word, uint32_t until) const {
  const auto reached = [&](uint32_t count) { return int32_t(count - until) >= 0; };
  for (int spins = 0; spins < kSpins; ++spins) {
    if (reached(word.count.load(std::memory_order_acquire))) return;
    pause();
  }
  while (true) {
    if (closed_->count.load()) throw std::runtime_error("another rank has ended");
    if (has_ended(parent_)) throw std::runtime_error("the driver of the ranks has ended");
    word.sleepers.fetch_add(1);
    const uint32_t count = word.count.load();
    const bool there = reached(count);
    if (!there) sleep_while(word.count, count);
    word.sleepers.fetch_sub(1);
    if (there) return;
  }
}

void Shm::advance(Word& word) {
  word.count.fetch_add(1);
  if (word.sleepers.load()) wake(word.count);
}

}  // namespace olv
