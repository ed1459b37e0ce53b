// Memory that is kept from one pass to the next.
//
// A pass takes some megabytes and gives them back, many times a second. Where the system's allocator returns
// them to the system at once, as in Dask's workers, which tell it to, every page would be filled in anew by the
// system in every pass, and threads would wait for each other there.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <vector>

namespace kronlearn {

// Memory of so many bytes, aligned to 64; what is in it is not defined.
void* take_workspace(size_t bytes);
// Gives back what take_workspace() gave for as many bytes.
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

// Numbers whose memory is needed again in the next pass.
template <class T>
using Numbers = std::vector<T, WorkspaceAllocator<T>>;

struct ReturnWorkspace {
  size_t bytes = 0;
  void operator()(void* workspace) const { return_workspace(workspace, bytes); }
};
// Memory that is given back by its destructor; it begins undefined.
using Workspace = std::unique_ptr<char[], ReturnWorkspace>;
inline Workspace make_workspace(size_t bytes) {
  return Workspace(static_cast<char*>(take_workspace(bytes)), ReturnWorkspace{bytes});
}

}  // namespace kronlearn
