#include "runtime/system.hpp"

#include <algorithm>

#if defined(_WIN32)
#if !defined(NOMINMAX)
#define NOMINMAX
#endif
#include <io.h>
#include <windows.h>
#else
#include <unistd.h>

#include <cerrno>
#endif

namespace kronlearn {

#if defined(_WIN32)

int64_t process_id() { return GetCurrentProcessId(); }

int64_t read_at(int file, int64_t offset, char* buffer, int64_t bytes) {
  OVERLAPPED position{};
  position.Offset = DWORD(offset);
  position.OffsetHigh = DWORD(offset >> 32);
  DWORD read = 0;
  const DWORD wanted = DWORD(std::min<int64_t>(bytes, 1 << 30));
  const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(file));
  if (ReadFile(handle, buffer, wanted, &read, &position)) return read;
  return GetLastError() == ERROR_HANDLE_EOF ? 0 : -1;
}

#else

int64_t process_id() { return getpid(); }

int64_t read_at(int file, int64_t offset, char* buffer, int64_t bytes) {
  ssize_t read;
  do read = pread(file, buffer, size_t(bytes), offset);
  while (read < 0 && errno == EINTR);
  return read;
}

#endif

}  // namespace kronlearn
