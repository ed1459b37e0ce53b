// What the core asks of the operating system.
#pragma once

#include <cstdint>

namespace kronlearn {

int64_t process_id();

// Reads up to `bytes` of an open file from `offset` on, wherever its position is; that moves on Windows alone. How many
// bytes were read: 0 at the end of the file, negative after an error.
int64_t read_at(int file, int64_t offset, char* buffer, int64_t bytes);

}  // namespace kronlearn
