// Memory that is kept from one pass to the next.
//
// A pass allocates some megabytes and frees them, many times a second. An allocator that returns freed memory to the
// system at once, as Dask's workers tell it to, would make the system clear every page again in every pass, and threads
// would wait for each other there.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <vector>

namespace kronlearn {

// Returns uninitialised memory, aligned to 64 bytes.
void* take_workspace(size_t bytes);
// Takes back memory that take_workspace() returned for the same number of bytes.
void return_workspace(void* workspace, size_t bytes) noexcept;

template <class T>
struct WorkspaceAllocator {
  using value_type = T;

  WorkspaceAllocator() = default;
  template <class U>
  WorkspaceAllocator(const WorkspaceAllocator<U>&) {}

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(take_workspace(count * sizeof(T)));
  }
  void deallocate(T* workspace, size_t count) noexcept {
    return_workspace(workspace, count * sizeof(T));
  }

  friend bool operator==(const WorkspaceAllocator&, const WorkspaceAllocator&) { return true; }
};

// A vector whose memory is kept for the next pass.
template <class T>
using Numbers = std::vector<T, WorkspaceAllocator<T>>;

struct ReturnWorkspace {
  size_t bytes = 0;
  void operator()(void* workspace) const { return_workspace(workspace, bytes); }
};
// Uninitialised memory that its destructor returns.
using Workspace = std::unique_ptr<char[], ReturnWorkspace>;
inline Workspace make_workspace(size_t bytes) {
  return Workspace(static_cast<char*>(take_workspace(bytes)), ReturnWorkspace{bytes});
}

}  // namespace kronlearn
