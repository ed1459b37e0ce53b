// The cases that write_cases.py writes, and the comparison of results with what they expect.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cases {

using Array = std::vector<double>;
// Results by name; a name may appear more than once.
using Results = std::vector<std::pair<std::string, Array>>;

struct Case {
  std::string kind, name;
  std::map<std::string, Array> arrays;

  bool has(const std::string& array) const { return arrays.count(array) > 0; }
  const Array& operator[](const std::string& array) const { return arrays.at(array); }
  double number(const std::string& array) const { return arrays.at(array).at(0); }

  // An array as numbers of type T; empty if the case does not have it.
  template <class T>
  std::vector<T> as(const std::string& array) const {
    if (!has(array)) return {};
    return {arrays.at(array).begin(), arrays.at(array).end()};
  }
};

inline std::vector<Case> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Case> all;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("case ", 0) == 0) {
      const size_t space = line.find(' ', 5);
      all.push_back({line.substr(5, space - 5), line.substr(space + 1), {}});
    } else {
      const size_t space = line.rfind(' ');
      Array& array = all.back().arrays[line.substr(6, space - 6)];
      array.resize(std::stoul(line.substr(space + 1)));
      file.read(reinterpret_cast<char*>(array.data()),
                std::streamsize(array.size() * sizeof(double)));
    }
  }
  if (all.empty() || file.bad()) throw std::runtime_error("there are no cases in the file");
  return all;
}

// Prints where results differ from those expected by more than a fraction of the largest; how many do.
inline int compare(const Case& c, const Results& results, double fraction,
                   const std::string& name) {
  int failed = 0;
  for (const auto& [array, found] : results) {
    const Array& expected = c["expected " + array];
    double largest = 1e-300, difference = found.size() == expected.size() ? 0 : INFINITY;
    for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
      if (std::isnan(expected[i])) continue;
      largest = std::max(largest, std::abs(expected[i]));
      const double d = std::abs(found[i] - expected[i]);
      difference = std::isfinite(d) ? std::max(difference, d) : INFINITY;
    }
    if (difference <= fraction * largest) continue;
    ++failed;
    std::printf("FAILED %s: %s: off by %.2g of the largest\n", name.c_str(), array.c_str(),
                difference / largest);
  }
  return failed;
}

}  // namespace cases
