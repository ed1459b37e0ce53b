// Functions of the operating system.
#pragma once

#include <cstdint>

namespace kronlearn {

int64_t process_id();

// Reads up to `bytes` bytes of an open file at `offset`, regardless of the file position, which changes only on
// Windows. Returns the number of bytes read: 0 at the end of the file, negative after an error.
int64_t read_at(int file, int64_t offset, char* buffer, int64_t bytes);

}  // namespace kronlearn
