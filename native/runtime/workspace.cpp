#include "runtime/workspace.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <mutex>

namespace kronlearn {
namespace {

constexpr std::align_val_t kAlignment{64};
// Less than this the system's allocator keeps at hand itself; more than this is seldom needed twice.
constexpr size_t kLeast = size_t(1) << 15, kMost = size_t(1) << 26;
// Bytes that are kept in all.
constexpr size_t kMostKept = size_t(1) << 26;

// Sizes are rounded up by an eighth at most, so that passes which differ a little can use the same memory.
size_t rounded(size_t bytes) {
  if (bytes < kLeast) return std::max<size_t>(bytes, 64);
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

bool is_kept(size_t size) { return size >= kLeast && size <= kMost; }

// What is free, the longest so first. Never destroyed: threads may still come to it when the process ends.
struct Free {
  struct Block {
    size_t size;
    void* memory;
  };
  std::mutex mutex;
  std::deque<Block> blocks;
  size_t bytes = 0;
};

Free& free_blocks() {
  static auto* found = new Free;
  return *found;
}

}  // namespace

// Whoever finds the lock taken does without: so nobody waits, nor does the child of a fork, in which it may
// stay taken for ever.

void* take_workspace(size_t bytes) {
  const size_t size = rounded(bytes);
  if (is_kept(size)) {
    Free& free = free_blocks();
    const std::unique_lock lock(free.mutex, std::try_to_lock);
    if (lock) {
      // The one that was used last is the likeliest to be in the cache.
      const auto found = std::find_if(free.blocks.rbegin(), free.blocks.rend(),
                                      [&](const Free::Block& b) { return b.size == size; });
      if (found != free.blocks.rend()) {
        void* const memory = found->memory;
        free.blocks.erase(std::next(found).base());
        free.bytes -= size;
        return memory;
      }
    }
  }
  return ::operator new(size, kAlignment);
}

void return_workspace(void* workspace, size_t bytes) noexcept {
  if (!workspace) return;
  const size_t size = rounded(bytes);
  if (is_kept(size)) {
    Free& free = free_blocks();
    const std::unique_lock lock(free.mutex, std::try_to_lock);
    if (lock) {
      try {
        free.blocks.push_back({size, workspace});
      } catch (const std::bad_alloc&) {
        ::operator delete(workspace, kAlignment);
        return;
      }
      free.bytes += size;
      while (free.bytes > kMostKept) {
        free.bytes -= free.blocks.front().size;
        ::operator delete(free.blocks.front().memory, kAlignment);
        free.blocks.pop_front();
      }
      return;
    }
  }
  ::operator delete(workspace, kAlignment);
}

}  // namespace kronlearn
