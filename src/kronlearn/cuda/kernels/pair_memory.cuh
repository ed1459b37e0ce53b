// The shared memory of pursuits by pairs of lanes (pair_pursuit.cuh), in layouts that avoid bank conflicts.
#pragma once

#include "outbox.cuh"

namespace kronlearn::pairs {

constexpr bool kOls = KRONLEARN_OLS;
constexpr int kWidth = KRONLEARN_WIDTH;
static_assert(1 <= kWidth && kWidth <= 16);
constexpr int kThreads = 2 * kTile;
constexpr int kOwn = (kWidth + 1) / 2;  // the most selected atoms that belong to one lane

// Thread t processes half t % 2 of sample t / 2 of the tile.
KRONLEARN_DEVICE int own_half() { return threadIdx.x % 2; }
KRONLEARN_DEVICE float of_other(float x) { return __shfl_xor_sync(kWholeWarp, x, 1); }
KRONLEARN_DEVICE float pair_sum(float x) { return x + of_other(x); }

KRONLEARN_DEVICE float& number_at(unsigned char* p) { return *reinterpret_cast<float*>(p); }
KRONLEARN_DEVICE float2& two_at(unsigned char* p) { return *reinterpret_cast<float2*>(p); }
KRONLEARN_DEVICE float4& four_at(unsigned char* p) { return *reinterpret_cast<float4*>(p); }

// m += left rightᵀ
KRONLEARN_DEVICE void add_half_product(float (&m)[8][4], const float (&left)[8], const float (&right)[4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) m[i][c] = fmaf(left[i], right[c], m[i][c]);
}

// ---------------------------------------------------------------- atoms

// A selected atom (i, j) is represented by a word: the lower 16 bits are the address of its row of the left
// Gram matrix, the upper ones the offset of its row of the right one. The low seven bits are 16 i, because the
// left Gram matrix begins at a multiple of 128 and other bits of the address are above them.
KRONLEARN_DEVICE unsigned atom_word(unsigned atom, unsigned gram1) {
  return (gram1 | (atom & 56u) * 2u) + (atom << 23 & 7u << 23);
}
KRONLEARN_DEVICE unsigned atom_of(unsigned word) { return (word & 112u) / 2u | word >> 23; }

// Eight rows of eight numbers: the first halves of all rows, then the second halves. Lanes that read half a row
// each, of any rows, have no bank conflicts.
struct Rows {
  static constexpr int kBytes = 256;

  // Copies an (8, 8) matrix, one number for each of the first 64 threads.
  KRONLEARN_DEVICE static void fill(unsigned char* to, const float* from) {
    const int e = threadIdx.x;
    if (e < kSize) number_at(to + e / 8 * 16 + offset(e % 8)) = from[e];
  }
  // The offset of a column within each row.
  KRONLEARN_DEVICE static unsigned offset(unsigned column) { return column / 4 * 128 + column % 4 * 4; }

  KRONLEARN_DEVICE static void load(unsigned char* row, float (&to)[8]) {
    const float4 a = four_at(row), b = four_at(row + 128);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  }
};

KRONLEARN_DEVICE void load_half(unsigned char* row, float (&to)[4]) {
  const float4 a = four_at(row);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
}

// Eight rows of eight numbers, in four adjacent copies: eight neighbouring lanes, which read at the same time,
// use different banks for the half of a row that each reads.
struct Slots {
  static constexpr int kBytes = 1024;

  KRONLEARN_DEVICE static void fill(unsigned char* to, const float* from) {
    const int e = threadIdx.x;
    if (e >= kSize) return;
#pragma unroll
    for (int copy = 0; copy < 4; ++copy)
      number_at(to + e / 8 * 128 + copy * 32 + e % 8 * 4) = from[e];
  }
  // The offset of the copy that a thread reads.
  KRONLEARN_DEVICE static unsigned copy(unsigned thread) { return thread / 2 % 4 * 32; }
};

// ---------------------------------------------------------------- M

// M, the inverse triangular factor, without its first row, which is [1], and its last, which is used at once. A
// lane stores the columns l with l % 2 equal to its half: t/2 + 1 numbers of row t, in pieces of two for t < 4,
// four for t < 8, four and two for t < 12, and four and four from there on.
struct Triangle {
  static constexpr int kTwo = 8 * kThreads, kFour = 16 * kThreads;

  // The offset of row t ≥ 1.
  KRONLEARN_DEVICE static constexpr int before(int t) {
    return t < 4    ? (t - 1) * kTwo
           : t < 8  ? 3 * kTwo + (t - 4) * kFour
           : t < 12 ? 3 * kTwo + 4 * kFour + (t - 8) * (kFour + kTwo)
                    : 7 * kTwo + 8 * kFour + (t - 12) * 2 * kFour;
  }
  static constexpr int kBytes = kWidth <= 2   ? 0
                                : kWidth <= 5 ? (kWidth - 2) * kTwo
                                : kWidth <= 9 ? 3 * kTwo + (kWidth - 5) * kFour
                                : kWidth <= 13
                                    ? 3 * kTwo + 4 * kFour + (kWidth - 9) * (kFour + kTwo)
                                    : 7 * kTwo + 8 * kFour + (kWidth - 13) * 2 * kFour;

  KRONLEARN_DEVICE Triangle(unsigned char* memory, unsigned thread)
      : twos_(memory + 8 * thread), fours_(memory + 16 * thread) {}

  // Loads the lane's part of row t and leaves the rest of m unchanged.
  KRONLEARN_DEVICE void load(int t, float (&m)[8]) const {
    const int at = before(t);
    if (t < 4) {
      const float2 v = two_at(twos_ + at);
      m[0] = v.x, m[1] = v.y;
      return;
    }
    const float4 v = four_at(fours_ + at);
    m[0] = v.x, m[1] = v.y, m[2] = v.z, m[3] = v.w;
    if (t >= 12) {
      const float4 w = four_at(fours_ + at + kFour);
      m[4] = w.x, m[5] = w.y, m[6] = w.z, m[7] = w.w;
    } else if (t >= 8) {
      const float2 w = two_at(twos_ + at + kFour);
      m[4] = w.x, m[5] = w.y;
    }
  }

  // Sets row t ≥ 1 to factor · m.
  KRONLEARN_DEVICE void store(int t, const float (&m)[8], float factor) const {
    const int at = before(t);
    if (t < 4) {
      two_at(twos_ + at) = make_float2(factor * m[0], factor * m[1]);
      return;
    }
    four_at(fours_ + at) = make_float4(factor * m[0], factor * m[1], factor * m[2], factor * m[3]);
    if (t >= 12)
      four_at(fours_ + at + kFour) = make_float4(factor * m[4], factor * m[5], factor * m[6], factor * m[7]);
    else if (t >= 8)
      two_at(twos_ + at + kFour) = make_float2(factor * m[4], factor * m[5]);
  }

  // M[t, t], for the lane that stores column t.
  KRONLEARN_DEVICE float& diagonal(int t) const {
    unsigned char* piece = t < 4 ? twos_ : t < 8 ? fours_ : (t < 12 ? twos_ : fours_) + kFour;
    return number_at(piece + before(t) + t / 2 % 4 * 4);
  }

 private:
  unsigned char *twos_, *fours_;
};

// Row t ≥ 1 of M, with the columns of both lanes of a pair.
class WholeRow {
 public:
  KRONLEARN_DEVICE WholeRow(unsigned char* memory, unsigned thread, int t) {
    const unsigned even = thread & ~1u;
    const int first = t < 4 ? 8 : 16, second = t < 12 ? 8 : 16;
    unsigned char* row = memory + Triangle::before(t);
    pieces_[0][0] = row + first * even;
    pieces_[0][1] = pieces_[0][0] + first;
    pieces_[1][0] = row + Triangle::kFour + second * even;
    pieces_[1][1] = pieces_[1][0] + second;
  }

  // Column l. Volatile, so that the compiler loads one at a time: registers do not suffice for several.
  KRONLEARN_DEVICE float column(int l) const {
    return *static_cast<volatile float*>(&number_at(pieces_[l / 8][l % 2] + l / 2 % 4 * 4));
  }

 private:
  unsigned char* pieces_[2][2];
};

// ---------------------------------------------------------------- all tables of a block

// The words of the selected atoms. Each lane stores those of its own atoms, interleaved with those of its
// neighbours.
struct Picks {
  struct Words {
    unsigned even, odd;
  };
  static constexpr int kBytes = (kOwn + 3) / 4 * 16 * kThreads;

  KRONLEARN_DEVICE Picks(unsigned char* memory, unsigned thread)
      : own_(memory + 4 * thread), even_(memory + 4 * (thread & ~1u)) {}

  KRONLEARN_DEVICE unsigned& own(int q) const { return word(own_ + 4 * kThreads * q); }
  // Atoms 2q and 2q + 1, one of each lane. Volatile for OLS, which has no registers for loads ahead of time.
  KRONLEARN_DEVICE Words both(int q) const {
    using Two = unsigned long long;
    Two& found = *reinterpret_cast<Two*>(even_ + 4 * kThreads * q);
    const Two words = kOls ? *static_cast<volatile Two*>(&found) : found;
    return {unsigned(words), unsigned(words >> 32)};
  }

 private:
  KRONLEARN_DEVICE static unsigned& word(unsigned char* p) { return *reinterpret_cast<unsigned*>(p); }

  unsigned char *own_, *even_;
};

// The first correlations of the tile: row i of a lane's half is next to those of its neighbours.
struct First {
  static constexpr int kBytes = 4 * kTile * kSize;

  KRONLEARN_DEVICE explicit First(unsigned char* memory) : memory_(memory) {}

  KRONLEARN_DEVICE void store(const float (&alpha)[8][4]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      four_at(half(i)) = make_float4(alpha[i][0], alpha[i][1], alpha[i][2], alpha[i][3]);
  }
  KRONLEARN_DEVICE void load(float (&alpha)[8][4]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) load_half(half(i), alpha[i]);
  }
  // The first correlation of an atom with a thread's sample.
  KRONLEARN_DEVICE float of(unsigned atom, unsigned thread) const {
    return number_at(memory_ + atom / 8 * (16 * kThreads) + thread / 2 * 32 + atom % 8 * 4);
  }

 private:
  KRONLEARN_DEVICE unsigned char* half(int i) const { return memory_ + 16 * (i * kThreads + threadIdx.x); }

  unsigned char* memory_;
};

using PairOutbox = Outbox<kWidth, kThreads>;

template <int kA, int kB>
constexpr int kLarger = kA > kB ? kA : kB;

// The shared memory of a block if two blocks share a multiprocessor.
constexpr int kSharedOfBlock = 113 * 1024;

// Codes overwrite the first correlations. The outbox overwrites M and, if memory does not suffice for keeping
// them, so do samples, which are then loaded again.
struct Memory {
  static constexpr int kCounts = 0, kGram1 = kCounts + 8 * kThreads / 32 * 4;
  static constexpr int kGram2 = kGram1 + Rows::kBytes, kAtoms1 = kGram2 + Slots::kBytes;
  static constexpr int kAtoms2 = kAtoms1 + Rows::kBytes, kLeft = kAtoms2 + Rows::kBytes;
  static constexpr int kRight = kLeft + 4 * kSize, kMask = kRight + 4 * kSize;
  static constexpr int kPicks = kMask + 16, kFirst = kPicks + Picks::kBytes;
  static constexpr int kCodes = kFirst, kBehind = kFirst + kLarger<First::kBytes, kCodeBytes>;
  static constexpr int kSampleBytes = 4 * kTileNumbers;
  static constexpr int kApart = kBehind + kSampleBytes + kLarger<Triangle::kBytes, PairOutbox::kBytes>;
  static constexpr bool kKeepsSamples = kApart <= kSharedOfBlock;
  static constexpr int kSamples = kBehind, kOutbox = kBehind + kSampleBytes;
  static constexpr int kTriangle = kKeepsSamples ? kOutbox : kBehind;
  static constexpr int kBytes =
      kKeepsSamples ? kApart : kBehind + kLarger<Triangle::kBytes, kSampleBytes + PairOutbox::kBytes>;
  static_assert(kBytes <= kSharedOfBlock && kBehind % 16 == 0 && kGram1 % 128 == 0);
};

}  // namespace kronlearn::pairs
