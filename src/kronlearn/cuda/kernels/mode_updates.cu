// Adds up the sums of one mode that the blocks of a coding or summing kernel have left; the block that finishes
// last updates the factor of that mode. Blocks have 256 threads.
#include "updates.cuh"

// Updates the left mode, and keeps its unscaled factor for the sums of the right mode.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock, 1) update_left(kronlearn::update::Update u) {
  using namespace kronlearn::update;
  const Before before(u);
  if (!add_up(u, kN * kColumns, true) || before.stopped) return;
  Memory& m = memory();
  const Updater updater(u, m);
  updater.begin(before);
  updater.take_sums();
  if (!updater.solve(0)) {
    updater.finish();
    return;
  }
  updater.adopt(0);
  for (int e = threadIdx.x; e < kM * kN; e += kronlearn::kBlock)
    u.unscaled[e] = float(m.unscaled[e % kN * kRow + e / kN]);
  updater.write_tables(0);
}

// Updates the right mode, which ends the iteration.
KRONLEARN_KERNEL void __launch_bounds__(kronlearn::kBlock, 1) update_right(kronlearn::update::Update u) {
  using namespace kronlearn::update;
  const Before before(u);
  if (!add_up(u, kN * kColumns, false) || before.stopped) return;
  const Updater updater(u, memory());
  updater.begin(before);
  updater.take_sums();
  if (updater.solve(1)) {
    updater.adopt(1);
    updater.write_tables(1);
  }
  updater.finish();
}
