#include "runtime/workspace.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <mutex>

namespace kronlearn {
namespace {

constexpr std::align_val_t kAlignment{64};
// Sizes of blocks that are kept. Allocators keep smaller ones themselves; larger ones are seldom needed again.
constexpr size_t kSmallestKept = size_t(1) << 15, kLargestKept = size_t(1) << 26;
// The number of bytes that are kept in total.
constexpr size_t kMostKept = size_t(1) << 26;

// Rounds sizes up, by an eighth at most, so that passes that differ a little can use the same memory.
size_t rounded(size_t bytes) {
  if (bytes < kSmallestKept) return std::max<size_t>(bytes, 64);
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

bool is_kept(size_t size) { return size >= kSmallestKept && size <= kLargestKept; }

// Free blocks, the least recently used first. Never destroyed: threads may still use it when the process ends.
struct FreeBlocks {
  struct Block {
    size_t size;
    void* memory;
  };
  std::mutex mutex;
  std::deque<Block> blocks;
  size_t bytes = 0;
};

FreeBlocks& free_blocks() {
  static auto* blocks = new FreeBlocks;
  return *blocks;
}

}  // namespace

// If another thread holds the lock, both functions use the system's allocator instead of waiting. After a fork, the
// lock may stay locked for ever in the child.

void* take_workspace(size_t bytes) {
  const size_t size = rounded(bytes);
  if (is_kept(size)) {
    FreeBlocks& free = free_blocks();
    const std::unique_lock lock(free.mutex, std::try_to_lock);
    if (lock) {
      // The most recently used block is most likely in the cache.
      const auto found = std::find_if(free.blocks.rbegin(), free.blocks.rend(),
                                      [&](const FreeBlocks::Block& b) { return b.size == size; });
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
    FreeBlocks& free = free_blocks();
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
