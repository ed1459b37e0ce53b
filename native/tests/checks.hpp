// What the tests of the core share: counted checks and random numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>

namespace checks {

inline int& made() {
  static int count = 0;
  return count;
}
inline int& failed() {
  static int count = 0;
  return count;
}

inline void expect(bool holds, const std::string& what) {
  ++made();
  if (holds) return;
  ++failed();
  std::printf("FAILED %s\n", what.c_str());
}

// Whether all numbers agree to a fraction of the largest.
template <class A, class B>
void expect_close(const A& found, const B& expected, double fraction, const std::string& what) {
  double largest = 1e-300, difference = found.size() == expected.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    largest = std::max(largest, std::abs(double(expected[i])));
    const double d = std::abs(double(found[i]) - double(expected[i]));
    difference = std::isfinite(d) ? std::max(difference, d) : INFINITY;
  }
  char relative[32];
  std::snprintf(relative, sizeof relative, "%.2g", difference / largest);
  expect(difference <= fraction * largest, what + ": off by " + relative + " of the largest");
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  double normal() { return normal_(engine_); }
  double uniform() { return uniform_(engine_); }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
};

void check_convolutions();

}  // namespace checks
