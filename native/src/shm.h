// Where the ranks of one machine meet: collectives in memory that their processes share. One writer a word, no locks.
#pragma once
#include <atomic>
#include <cstdint>

#include "olivine.h"

namespace olv {

class Shm {
 public:
  // `memory`: shared by all ranks, zeroed before the first one joins, and mapped while it is used. `parent`:
  // the process whose end ends this rank; 0: none.
  Shm(void* memory, int ranks, int stages, int number, int64_t parent);
  static int64_t bytes(int ranks, int stages);

  // What an op of a plan does: see olv_meet. Throws where another rank has ended.
  void meet(olv_kind kind, const float* x, int64_t x_width, float* out, int64_t width, int64_t rows);
  // All who wait here fail, and all who come.
  void close();

 private:
  struct Word;
  struct Member;

  float* slot(int member, int which) const;
  void all_reduce(const float* x, float* out, int64_t count);
  void all_gather(const float* x, int64_t x_width, float* out, int64_t width, int64_t rows);
  void send(const float* x, int64_t count);
  void receive(float* out, int64_t count);
  uint32_t arrive(const float* x, int64_t count);
  const float* wait_for(int rank, uint32_t piece) const;
  void wait(Word& word, uint32_t until) const;
  static void advance(Word& word);

  Word* closed_;
  Member* members_;
  float* slots_;
  int ranks_, stages_, first_, number_;  // first_: the first rank of this stage
  int64_t parent_;
};

}  // namespace olv
