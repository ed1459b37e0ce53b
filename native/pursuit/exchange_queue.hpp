// The samples of a tile that wait for a round of exchanges, with the supports to try.
#pragma once

#include "pursuit/transfer.hpp"

namespace kronlearn::KRONLEARN_SET {

template <class T>
class ExchangeQueue {
 public:
  ExchangeQueue(const CodingTask<T>& task, Arena<T>& arena)
      : tile(tile_of(task.dictionary.atoms(), task.width)),
        width_(task.width),
        stride_(round_up(task.width, kLanes<T>)),
        index_(array<IntScalar<T>>(arena, tile * stride_)),
        value_(array<T>(arena, tile * stride_)),
        nonzeros_(array<int32_t>(arena, tile)),
        queue_(array<int64_t>(arena, tile)),
        rounds(array<int32_t>(arena, tile)),
        met(array<int32_t>(arena, tile)),
        residual2(array<T>(arena, tile)) {}

  // Puts a sample and its code (width) into the queue.
  void add(int64_t t, const int32_t* index, const T* value, int32_t nonzeros) {
    nonzeros_[t] = nonzeros;
    rounds[t] = met[t] = 0;
    residual2[t] = T(__builtin_inf());
    for (int l = 0; l < width_; ++l) {
      index_[t * stride_ + l] = index[l];
      value_[t * stride_ + l] = value[l];
    }
    enqueue(t);
  }

  int64_t waiting() const { return waiting_; }
  void enqueue(int64_t t) { queue_[(first_ + waiting_++) % tile] = t; }
  int64_t dequeue() {
    const int64_t t = queue_[first_];
    first_ = (first_ + 1) % tile;
    --waiting_;
    return t;
  }
  void clear() { first_ = waiting_ = 0; }

  // Loads the supports of samples t (kLanes), numbered within the tile, into lanes.
  __attribute__((noinline)) void load(const int64_t* t, LaneCodes<T>& out) const {
    alignas(64) IntScalar<T> counts[kLanes<T>];
    const T *index[kLanes<T>], *value[kLanes<T>];
    out.slots = 0;
    for (int l = 0; l < kLanes<T>; ++l) {
      counts[l] = nonzeros_[t[l]];
      if (nonzeros_[t[l]] > out.slots) out.slots = nonzeros_[t[l]];
      index[l] = reinterpret_cast<const T*>(index_) + t[l] * stride_;
      value[l] = value_ + t[l] * stride_;
    }
    __builtin_memcpy(&out.nonzeros, counts, sizeof out.nonzeros);
    load_transposed<T>(index, out.slots, true, reinterpret_cast<Vec<T>*>(out.index));
    load_transposed<T>(value, out.slots, true, out.value);
    for (int l = 0; l < out.slots; ++l) {
      const Int<T> used = out.nonzeros > l;
      out.index[l] = used ? out.index[l] : Int<T>{};
      out.value[l] = used ? out.value[l] : Vec<T>{};
    }
  }

  // Stores the supports of the first `lanes` lanes, which have as many atoms as before.
  __attribute__((noinline)) void store(const int64_t* t, int lanes, int slots, const Int<T>* index,
                                       const Vec<T>* value) {
    T *indices[kLanes<T>], *values[kLanes<T>];
    for (int l = 0; l < lanes; ++l) {
      indices[l] = reinterpret_cast<T*>(index_) + t[l] * stride_;
      values[l] = value_ + t[l] * stride_;
    }
    store_transposed<T>(reinterpret_cast<const Vec<T>*>(index), slots, lanes, indices);
    store_transposed<T>(value, slots, lanes, values);
  }

  // Stores the support of one lane.
  void store_lane(int64_t t, int lane, const LaneCodes<T>& codes) {
    for (int l = 0; l < nonzeros_[t]; ++l) {
      index_[t * stride_ + l] = codes.index[l][lane];
      value_[t * stride_ + l] = codes.value[l][lane];
    }
  }

  // Removes an atom from a support. The last atom takes its slot.
  void remove(int64_t t, int slot) {
    const int64_t last = t * stride_ + --nonzeros_[t];
    index_[t * stride_ + slot] = index_[last];
    value_[t * stride_ + slot] = value_[last];
  }

  const int64_t tile;  // samples

 private:
  template <class N>
  static N* array(Arena<T>& arena, int64_t count) {
    const int64_t bytes = count * int64_t(sizeof(N));
    return reinterpret_cast<N*>(
        arena.vectors((bytes + KRONLEARN_VECTOR_BYTES - 1) / KRONLEARN_VECTOR_BYTES));
  }

  const int width_;
  const int64_t stride_;       // the width rounded up to whole vectors
  IntScalar<T>* const index_;  // (tile, stride)
  T* const value_;             // (tile, stride): approximate coefficients
  int32_t* const nonzeros_;    // (tile)
  int64_t* const queue_;       // (tile): a ring buffer
  int64_t first_ = 0, waiting_ = 0;

 public:
  int32_t* const rounds;  // (tile): number of rounds so far
  int32_t* const met;     // (tile): whether any support has met the error target
  T* const residual2;     // (tile): ‖r‖² before the last exchange
};

}  // namespace kronlearn::KRONLEARN_SET
