// Reading a mapped file beyond its end, because it was truncated, raises SIGBUS and ends the process. The handler
// prints which file it was, and then calls the handler that was installed before.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

#include "olivine.h"

#if defined(_WIN32)

extern "C" int olv_guard(const void*, int64_t, const char*) { return 0; }
extern "C" void olv_unguard(const void*) {}

#else

#include <signal.h>
#include <unistd.h>

namespace {

// A mapped file. Entries are reused but never freed: the handler reads them at any time, without a lock.
struct Mapping {
  std::atomic<uintptr_t> begin{0}, end{0};  // both 0: unused
  char path[1024] = {};
  Mapping* next = nullptr;
};

std::mutex mutex;
std::atomic<Mapping*> mappings{nullptr};
bool installed = false;
struct sigaction previous;

const char* file_at(uintptr_t address) {
  for (const Mapping* each = mappings.load(); each; each = each->next)
    if (each->begin.load() <= address && address < each->end.load()) return each->path;
  return nullptr;
}

void write_error(const char* text) {
  for (size_t left = strlen(text); left > 0;) {
    const ssize_t done = write(STDERR_FILENO, text, left);
    if (done <= 0) return;
    text += done;
    left -= size_t(done);
  }
}

// Only async-signal-safe calls.
void on_fault(int signal, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;  // by a process, not by a fault
  const char* path = sent ? nullptr : file_at(uintptr_t(info->si_addr));
  if (path) {
    write_error("\nolivine: ");
    write_error(path);
    write_error(": the file was truncated while it was in use, and reading it ends this process (SIGBUS)\n");
  }
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler == SIG_IGN && sent) {
    return;
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    struct sigaction fallback = {};
    fallback.sa_handler = SIG_DFL;
    sigaction(signal, &fallback, nullptr);
    raise(signal);  // takes effect when this handler returns
  }
}

void install() {
  struct sigaction ours = {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  installed = sigaction(SIGBUS, &ours, &previous) == 0;
}

}  // namespace

extern "C" int olv_guard(const void* data, int64_t bytes, const char* path) {
  const std::lock_guard lock(mutex);
  if (!installed) install();
  Mapping* free = mappings.load();
  while (free && free->end.load() != 0) free = free->next;
  const bool added = free == nullptr;
  if (added && !(free = new (std::nothrow) Mapping)) return 1;
  strncpy(free->path, path, sizeof free->path - 1);
  free->begin.store(uintptr_t(data));
  free->end.store(uintptr_t(data) + uintptr_t(bytes));
  if (added) {
    free->next = mappings.load();
    mappings.store(free);
  }
  return installed ? 0 : 1;
}

extern "C" void olv_unguard(const void* data) {
  const std::lock_guard lock(mutex);
  for (Mapping* each = mappings.load(); each; each = each->next) {
    if (each->begin.load() != uintptr_t(data) || each->end.load() == 0) continue;
    each->end.store(0);
    each->begin.store(0);
    return;
  }
}

#endif
