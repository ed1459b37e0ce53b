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

// Room for some bytes, aligned to 64; what is in it is not defined.
void* take_room(size_t bytes);
// Gives back what take_room() gave for as many bytes.
void return_room(void* room, size_t bytes) noexcept;

template <class T>
struct RoomAllocator {
  using value_type = T;

  RoomAllocator() = default;
  template <class U>
  RoomAllocator(const RoomAllocator<U>&) {}

  T* allocate(size_t count) {
    if (count > std::numeric_limits<size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(take_room(count * sizeof(T)));
  }
  void deallocate(T* room, size_t count) noexcept { return_room(room, count * sizeof(T)); }

  friend bool operator==(const RoomAllocator&, const RoomAllocator&) { return true; }
};

// Numbers whose memory is needed again in the next pass.
template <class T>
using Numbers = std::vector<T, RoomAllocator<T>>;

struct ReturnRoom {
  size_t bytes = 0;
  void operator()(void* room) const { return_room(room, bytes); }
};
// Bytes that begin undefined.
using Bytes = std::unique_ptr<char[], ReturnRoom>;
inline Bytes bytes_of_room(size_t bytes) {
  return Bytes(static_cast<char*>(take_room(bytes)), ReturnRoom{bytes});
}

}  // namespace kronlearn
