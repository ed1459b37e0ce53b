// Runs CUDA kernels on a processor, to test them without a GPU.
//
// Included before a .cu file, this header defines for g++ what nvcc provides. The CUDA threads of a block are
// fibers that take turns at barriers, and blocks run one after the other. With -fsanitize=thread (and -std=c++20)
// they are real threads, so that a missing __syncthreads is reported as a race. Threads exchange values through
// barriers; shared memory starts as NaN in every block; asynchronous copies are made only when they are waited
// for. All 32 lanes of a warp must take part in warp-wide operations. Only one launch may run at a time.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <thread>
#define KRONLEARN_OWN thread_local
#else
#include <csetjmp>
#include <ucontext.h>
#define KRONLEARN_OWN
#endif

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define KRONLEARN_EMULATED
#define __CUDACC__
#define __global__
#define __device__
#define __constant__ static
#define __shared__ static
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

namespace emulation {

// A warp of a single lane is emulated quickly.
#if !defined(KRONLEARN_LANES)
#define KRONLEARN_LANES 32
#endif
constexpr int kLanes = KRONLEARN_LANES;

#if !defined(__SANITIZE_THREAD__)
// Yields to the other fibers.
void let_others_run();
inline bool something_happened = false;
#endif

// A reusable barrier for a fixed number of threads.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  void wait() {
    const unsigned round = round_.load();
    if (arrived_.fetch_add(1) + 1 == threads_) {
      arrived_.store(0);
      round_.fetch_add(1);
#if defined(__SANITIZE_THREAD__)
      round_.notify_all();
    } else {
      round_.wait(round);
    }
#else
      something_happened = true;
    } else {
      while (round_.load() == round) let_others_run();
    }
#endif
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> round_{0};
};

// The values that the lanes of a warp exchange. Two sets of slots alternate: before a lane writes to one again,
// all lanes have passed the barrier of the other, and have finished reading.
struct Warp {
  struct alignas(16) Slot {
    unsigned char bytes[32];
  };
  Barrier barrier{kLanes};
  Slot slots[2][kLanes];
};

struct Block {
  explicit Block(int threads, size_t shared_bytes)
      : barrier(threads),
        warps(std::make_unique<Warp[]>((threads + kLanes - 1) / kLanes)),
        shared_bytes(shared_bytes),
        // Exactly this size, so that -fsanitize=address reports accesses beyond it.
        shared(static_cast<unsigned char*>(operator new(shared_bytes, std::align_val_t(128)))) {}
  ~Block() { operator delete(shared, std::align_val_t(128)); }

  Barrier barrier;
  std::unique_ptr<Warp[]> warps;
  size_t shared_bytes;
  unsigned char* shared;
};

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
  int group;
};

inline Block* block = nullptr;
inline KRONLEARN_OWN int side = 0, group = 0;
inline KRONLEARN_OWN std::vector<Copy> copies;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "CUDA emulation: %s\n", what);
  std::abort();
}

inline void check_mask(unsigned mask) {
  if (mask != 0xffffffffu) fail("only whole warps are emulated");
}

}  // namespace emulation

inline KRONLEARN_OWN emulation::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

inline int lane() { return int(threadIdx.x % kLanes); }

// Publishes a value of this lane; afterwards, taken() returns that of any lane.
template <class T>
void put(const T& value) {
  static_assert(sizeof(T) <= sizeof(Warp::Slot));
  side ^= 1;
  Warp& warp = block->warps[threadIdx.x / kLanes];
  std::memcpy(warp.slots[side][lane()].bytes, &value, sizeof(T));
  if (kLanes > 1) warp.barrier.wait();
}

template <class T>
T taken(int from) {
  T value;
  std::memcpy(&value, block->warps[threadIdx.x / kLanes].slots[side][from].bytes, sizeof(T));
  return value;
}

inline unsigned ballot(bool vote) {
  put(vote);
  unsigned all = 0;
  for (int l = 0; l < kLanes; ++l) all |= unsigned(taken<bool>(l)) << l;
  return all;
}

inline void copy_async(void* to, const void* from, size_t bytes) {
  if (reinterpret_cast<size_t>(to) % bytes || reinterpret_cast<size_t>(from) % bytes)
    fail("an asynchronous copy is not aligned");
  copies.push_back({to, from, bytes, group});
}

inline void commit_copies() { ++group; }

// Waits for all groups of copies except the latest ones.
inline void wait_for_copies(int latest) {
  std::vector<Copy> later;
  for (const Copy& c : copies) {
    if (c.group >= group - latest)
      later.push_back(c);
    else if (c.from)
      std::memcpy(c.to, c.from, c.bytes);
    else
      std::memset(c.to, 0, c.bytes);
  }
  copies.swap(later);
}

}  // namespace emulation

#include "cuda_matrices.hpp"

namespace emulation {

#if defined(__SANITIZE_THREAD__)

template <class Run>
void run_together(unsigned threads, const Run& run) {
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t) all.emplace_back(run, t);
  for (std::thread& thread : all) thread.join();
}

#else

struct Fiber {
  static constexpr size_t kStack = 256 * 1024;
  ucontext_t start;
  jmp_buf place;
  std::unique_ptr<char[]> stack{new char[kStack]};
  Index thread;
  int side = 0, group = 0;
  std::vector<Copy> copies;
  bool done = false;

  // Swaps the fiber's state with the global one.
  void exchange() {
    std::swap(thread, threadIdx);
    std::swap(side, emulation::side);
    std::swap(group, emulation::group);
    copies.swap(emulation::copies);
  }
};

inline std::vector<Fiber> fibers;
inline size_t running;
inline jmp_buf home;
inline void (*body)(const void* run, unsigned thread);
inline const void* body_run;

inline void let_others_run() {
  Fiber& fiber = fibers[running];
  fiber.exchange();
  if (!_setjmp(fiber.place)) _longjmp(home, 1);
  fiber.exchange();
}

// Resumes a fiber until it yields. Jumps are faster than swapcontext, which makes a system call for the signal
// mask.
inline void go_on(Fiber& fiber, bool begins) {
  if (_setjmp(home)) return;
  if (!begins) _longjmp(fiber.place, 1);
  setcontext(&fiber.start);
}

inline void run_one() {
  body(body_run, unsigned(running));
  fibers[running].done = something_happened = true;
  let_others_run();
}

template <class Run>
void run_together(unsigned threads, const Run& run) {
  body = [](const void* given, unsigned thread) { (*static_cast<const Run*>(given))(thread); };
  body_run = &run;
  fibers = std::vector<Fiber>(threads);
  for (Fiber& fiber : fibers) {
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = Fiber::kStack;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, run_one, 0);
  }
  bool begins = true;
  for (unsigned left = threads; left > 0; begins = false) {
    something_happened = false;
    for (running = 0; running < threads; ++running)
      if (!fibers[running].done) {
        go_on(fibers[running], begins);
        left -= fibers[running].done;
      }
    if (!something_happened) fail("all threads wait for each other");
  }
  fibers.clear();
}

#endif

// Runs a kernel in all threads of a grid. Kernels with barriers need whole warps.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), unsigned grid, unsigned threads, size_t shared_bytes,
            Arguments... arguments) {
  Block shared(int(threads), shared_bytes);
  block = &shared;
  const auto run = [&](unsigned thread) {
#if defined(__SSE2__)
    // CuPy compiles with subnormal inputs and results flushed to zero.
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
#endif
    threadIdx = {thread, 0, 0};
    blockDim = {threads, 1, 1};
    gridDim = {grid, 1, 1};
    for (unsigned b = 0; b < grid; ++b) {
      blockIdx = {b, 0, 0};
      if (thread == 0) std::memset(shared.shared, 0xff, shared_bytes);
      shared.barrier.wait();
      kernel(arguments...);
      if (!copies.empty()) fail("a kernel ended before its copies");
      shared.barrier.wait();
    }
#if defined(__SSE2__)
    _mm_setcsr(before);
#endif
  };
  run_together(threads, run);
  block = nullptr;
}

}  // namespace emulation

#include "cuda_functions.hpp"
