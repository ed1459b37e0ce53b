// Tests of the core that need no Python: every instruction set of this machine against plain loops in double
// precision. Prints what differs; the exit status is 1 if anything does.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>

#include "checks.hpp"
#include "moments/atom_sweep.hpp"
#include "moments/mode_sums.hpp"
#include "pass.hpp"
#include "reference.hpp"

namespace {

using checks::expect;
using checks::expect_close;
using checks::Random;
using kronlearn::Factor;
using kronlearn::Method;
using kronlearn::Sums;
using reference::Matrix;
using reference::Vector;

enum class Columns { unit, orthonormal, any };

double column_product(const Factor& f, int i, int j) {
  double sum = 0;
  for (int p = 0; p < f.m; ++p) sum += f.entries[p * f.n + i] * f.entries[p * f.n + j];
  return sum;
}

Factor random_factor(int m, int n, Columns columns, Random& random) {
  Factor f{m, n, std::vector<double>(size_t(m) * n)};
  for (double& x : f.entries) x = random.normal();
  for (int j = 0; j < n && columns != Columns::any; ++j) {
    for (int twice = 0; twice < 2; ++twice)
      for (int i = 0; i < j && columns == Columns::orthonormal; ++i) {
        const double product = column_product(f, i, j);
        for (int p = 0; p < m; ++p) f.entries[p * n + j] -= product * f.entries[p * n + i];
      }
    const double norm = std::sqrt(column_product(f, j, j));
    for (int p = 0; p < m; ++p) f.entries[p * n + j] /= norm;
  }
  return f;
}

struct Shape {
  std::vector<int> m, n;
};

std::string name_of(const Shape& shape) {
  std::string name;
  for (size_t i = 0; i < shape.m.size(); ++i)
    name += std::to_string(shape.m[i]) + "x" + std::to_string(shape.n[i]) + " ";
  return name;
}

const char* name_of(Method method) {
  constexpr const char* names[] = {"omp", "ols", "exchange", "threshold"};
  return names[int(method)];
}

// Samples, with weights if wanted, and the codes that the reference gives them.
template <class T>
struct Problem {
  static constexpr double kLeastMargin = sizeof(T) == 4 ? 2e-5 : 1e-9;
  static constexpr double kRounding = sizeof(T) == 4 ? 2e-4 : 1e-9;

  std::string name;
  Method method;
  reference::Target target;
  std::vector<Factor> factors;
  Matrix atoms;
  kronlearn::Dictionary<T> dictionary;
  int count;
  std::vector<T> samples, weights;
  std::vector<reference::Code> expected;

  Problem(const Shape& shape, Method m, reference::Target t, bool weighted, Columns columns)
      : name(name_of(shape) + name_of(m) + (weighted ? " weighted" : "") +
             (t.tol >= 0 ? " to a target" : "") + (sizeof(T) == 4 ? " float" : " double")),
        method(m),
        target(t),
        factors(make_factors(shape, columns)),
        atoms(reference::atoms_of(factors)),
        dictionary(factors),
        count(37) {
    Random random(7);
    for (int k = 0; k < count; ++k) {
      Vector sample(atoms.columns), weight(weighted ? atoms.columns : 0);
      for (double& x : sample) samples.push_back(T(x = float(random.normal())));
      for (double& w : weight)
        weights.push_back(T(w = random.uniform() < 0.2 ? 0 : float(random.uniform())));
      expected.push_back(reference::code(atoms, method, sample, weight, target));
    }
  }

  static std::vector<Factor> make_factors(const Shape& shape, Columns columns) {
    Random random(3);
    std::vector<Factor> factors;
    for (size_t i = 0; i < shape.m.size(); ++i)
      factors.push_back(random_factor(shape.m[i], shape.n[i], columns, random));
    return factors;
  }

  Vector sample(int k) const {
    return {samples.begin() + k * atoms.columns, samples.begin() + (k + 1) * atoms.columns};
  }

  // The (weighted) squared norm of what a code misses of a sample.
  double residual2(int k, const reference::Code& code) const {
    double sum = 0;
    for (int p = 0; p < atoms.columns; ++p) {
      const int at = k * atoms.columns + p;
      double missed = samples[at];
      for (size_t l = 0; l < code.atoms.size(); ++l)
        missed -= code.values[l] * atoms(code.atoms[l], p);
      sum += (weights.empty() ? 1 : double(weights[at])) * missed * missed;
    }
    return sum;
  }
};

// What a pass over the samples of a problem gives.
template <class T>
struct Result {
  std::vector<int32_t> index, nonzeros;
  std::vector<T> value;
  kronlearn::SumTree::Sums sums;

  reference::Code code(int k) const {
    const size_t width = index.size() / nonzeros.size(), at = k * width;
    reference::Code code;
    code.atoms.assign(index.begin() + at, index.begin() + at + nonzeros[k]);
    code.values.assign(value.begin() + at, value.begin() + at + nonzeros[k]);
    return code;
  }
  // The sums behind the few numbers that every pass sums.
  Vector sums_after(size_t first, size_t size) const {
    const auto begin = sums.begin() + kronlearn::kNumbers + first;
    return {begin, begin + size};
  }
};

template <class T>
Result<T> run_pass(const Problem<T>& problem, const kronlearn::InstructionSet& set, Sums sums,
                   int mode = -1, int threads = 1) {
  const size_t size = size_t(problem.count) * problem.target.width;
  Result<T> result{
      std::vector<int32_t>(size), std::vector<int32_t>(problem.count), std::vector<T>(size), {}};
  kronlearn::Pass<T> pass{};
  pass.block = 16;
  kronlearn::SumTree tree(kronlearn::sums_size(problem.dictionary, sums, mode),
                          (problem.count + pass.block - 1) / pass.block);
  pass.dictionary = &problem.dictionary;
  pass.instruction_set = &set;
  pass.method = problem.method;
  pass.width = problem.target.width;
  pass.count = problem.count;
  pass.chunk = 64;
  pass.chunk_at = [&](int64_t) { return problem.samples.data(); };
  pass.chunk_done = [](int64_t) {};
  pass.weights = problem.weights.empty() ? nullptr : problem.weights.data();
  pass.tol = T(problem.target.tol);
  pass.index = result.index.data();
  pass.value = result.value.data();
  pass.nonzeros = result.nonzeros.data();
  pass.sums = sums;
  pass.mode = mode;
  pass.tree = &tree;
  pass.threads = threads;
  expect(kronlearn::run(pass).not_finite == -1, problem.name + ": finite samples");
  result.sums = tree.total();
  return result;
}

template <class T>
void check_codes(const Problem<T>& problem, const Result<T>& result, const std::string& name) {
  int undecided = 0;
  double residual2 = 0;
  for (int k = 0; k < problem.count; ++k) {
    const reference::Code &expected = problem.expected[k], found = result.code(k);
    residual2 += problem.residual2(k, found);
    if (expected.margin < problem.kLeastMargin) {
      ++undecided;
      continue;
    }
    const std::string sample = name + ", sample " + std::to_string(k);
    expect(found.atoms == expected.atoms, sample + ": atoms");
    if (found.atoms == expected.atoms)
      expect_close(found.values, expected.values, problem.kRounding, sample + ": values");
  }
  expect(undecided <= problem.count / 4, name + ": enough samples whose code is beyond doubt");
  expect_close(Vector{result.sums[kronlearn::kResidual]}, Vector{residual2}, problem.kRounding,
               name + ": squared residual");
}

// The sums of a mode from full moments, of two terms that differ in one other mode. Both terms have the sums of their
// own factors, and the sum of all blocks of P is that of the summed factor.
template <class T>
void check_derived_sums(const Problem<T>& problem, const kronlearn::InstructionSet& set, int mode,
                        const Vector& xx, const Vector& xy, const std::vector<Vector>& samples,
                        const std::vector<reference::Code>& codes, const std::string& name) {
  const int modes = int(problem.factors.size()), other = (mode + 1) % modes;
  std::vector<std::vector<Factor>> terms(2, problem.factors);
  Random random(5);
  for (double& entry : terms[1][other].entries) entry = random.normal();
  std::vector<Factor> summed = problem.factors;
  for (size_t i = 0; i < summed[other].entries.size(); ++i)
    summed[other].entries[i] += terms[1][other].entries[i];
  std::vector<Vector> entries;
  std::vector<kronlearn::Stack> stacks;
  for (int i = 0; i < modes; ++i) {
    Vector both = terms[0][i].entries;
    both.insert(both.end(), terms[1][i].entries.begin(), terms[1][i].entries.end());
    entries.push_back(std::move(both));
    stacks.push_back({2, terms[0][i].m, terms[0][i].n, nullptr});
  }
  for (int i = 0; i < modes; ++i) stacks[i].entries = entries[i].data();
  const int n = stacks[mode].n, m = stacks[mode].m;
  Vector p(size_t(4) * n * n), c(size_t(2) * n * m);
  kronlearn::mode_sums(set, stacks, mode, xx.data(), xy.data(), p.data(), c.data());
  Vector all(size_t(n) * n);
  for (int r = 0; r < 2; ++r) {
    const auto expected = reference::mode_sums(terms[r], samples, codes, mode);
    Vector own;
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) {
        own.push_back(p[(r * n + i) * 2 * n + r * n + j]);
        all[i * n + j] += own.back() + p[(r * n + i) * 2 * n + (1 - r) * n + j];
      }
    expect_close(own, expected.p.entries, 1e-12, name + "p of a term");
    expect_close(Vector(c.begin() + r * n * m, c.begin() + (r + 1) * n * m), expected.c.entries,
                 1e-12, name + "c of a term");
  }
  if (modes == 1) return;
  const auto whole = reference::mode_sums(summed, samples, codes, mode);
  expect_close(all, whole.p.entries, 1e-12, name + "p of both terms");
}

template <class T>
void check_sums(const Problem<T>& problem, const kronlearn::InstructionSet& set,
                const std::string& name) {
  const Result<T> full = run_pass(problem, set, Sums::full);
  const int atoms = problem.atoms.rows, features = problem.atoms.columns;
  std::vector<Vector> samples;
  std::vector<reference::Code> codes;
  Vector xx(size_t(atoms) * (atoms + 1) / 2), xy(size_t(atoms) * features);
  for (int k = 0; k < problem.count; ++k) {
    samples.push_back(problem.sample(k));
    codes.push_back(full.code(k));
    const reference::Code& code = codes.back();
    for (size_t l = 0; l < code.atoms.size(); ++l) {
      const size_t q = code.atoms[l];
      for (size_t t = 0; t <= l; ++t)
        xx[q * (q + 1) / 2 + code.atoms[t]] += code.values[l] * code.values[t];
      for (int p = 0; p < features; ++p) xy[q * features + p] += code.values[l] * samples[k][p];
    }
  }
  // Single precision: some sums of products are taken in it.
  const double rounding = sizeof(T) == 4 ? 1e-5 : 1e-12;
  expect_close(full.sums_after(0, xx.size()), xx, rounding, name + ": xx");
  expect_close(full.sums_after(xx.size(), xy.size()), xy, rounding, name + ": xy");
  for (int mode = 0; mode < problem.dictionary.n_modes(); ++mode) {
    const Result<T> result = run_pass(problem, set, Sums::mode, mode);
    const auto expected = reference::mode_sums(problem.factors, samples, codes, mode);
    const int n = expected.p.rows;
    Vector p = result.sums_after(0, size_t(n) * n), whole(p.size());
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) whole[i * n + j] = p[i * n + j] + p[j * n + i];
    const std::string of = name + ": mode " + std::to_string(mode) + ": ";
    expect_close(whole, expected.p.entries, rounding, of + "p");
    const Vector& c = expected.c.entries;
    expect_close(result.sums_after(p.size(), c.size()), c, rounding, of + "c");
    check_derived_sums(problem, set, mode, xx, xy, samples, codes, of);
  }
}

template <class T>
void check_sweep(const Problem<T>& problem, const kronlearn::InstructionSet& set,
                 const std::string& name) {
  const Result<T> result = run_pass(problem, set, Sums::none);
  Matrix atoms = problem.atoms, found = atoms;
  std::vector<Vector> samples;
  std::vector<reference::Code> codes;
  std::vector<int32_t> starts = {0}, indices;
  std::vector<T> values;
  for (int k = 0; k < problem.count; ++k) {
    samples.push_back(problem.sample(k));
    codes.push_back(result.code(k));
    indices.insert(indices.end(), codes[k].atoms.begin(), codes[k].atoms.end());
    values.insert(values.end(), codes[k].values.begin(), codes[k].values.end());
    starts.push_back(int32_t(indices.size()));
  }
  kronlearn::run(kronlearn::AtomSweep<T>{&set, problem.count, atoms.columns, atoms.rows,
                                         problem.samples.data(), starts.data(), indices.data(),
                                         values.data(), found.entries.data()});
  reference::sweep_atoms(atoms, samples, codes);
  Vector expected;
  for (const reference::Code& code : codes)
    expected.insert(expected.end(), code.values.begin(), code.values.end());
  const double rounding = sizeof(T) == 4 ? 1e-4 : 1e-9;
  expect_close(found.entries, atoms.entries, rounding, name + ": atoms after a sweep");
  expect_close(values, expected, rounding, name + ": codes after a sweep");
}

// The compiled shapes, every tiling, one to three modes, unequal sizes, sizes that lanes do not divide.
const std::vector<Shape> kShapes = {
    {{8, 8}, {8, 8}},   {{8, 8}, {16, 16}}, {{16, 16}, {16, 16}},   {{5, 7}, {6, 8}},
    {{5, 6}, {7, 10}},  {{3, 7}, {3, 15}},  {{12}, {20}},           {{9, 1}, {11, 1}},
    {{4, 5}, {13, 14}}, {{1, 9}, {1, 17}},  {{3, 2, 4}, {4, 3, 5}},
};
const std::vector<Shape> kSquares = {
    {{8, 8}, {8, 8}}, {{4, 4}, {4, 4}}, {{6, 5}, {6, 5}}, {{3, 2, 4}, {3, 2, 4}}};

template <class T>
void check_problem(const Problem<T>& problem, bool with_sums) {
  for (const std::string& set_name : kronlearn::instruction_sets()) {
    const kronlearn::InstructionSet& set = kronlearn::instruction_set(set_name);
    const std::string name = set_name + " " + problem.name;
    const Result<T> result = run_pass(problem, set, Sums::none);
    check_codes(problem, result, name);
    const Result<T> in_threads = run_pass(problem, set, Sums::none, -1, 3);
    expect(result.value == in_threads.value && result.sums == in_threads.sums,
           name + ": the same bits in three threads");
    if (!with_sums) continue;
    check_sums(problem, set, name);
    check_sweep(problem, set, name);
  }
}

template <class T>
void check_coding() {
  for (const Shape& shape : kShapes) {
    int features = 1;
    for (int m : shape.m) features *= m;
    const double tol = 0.7 * std::sqrt(double(features));
    check_problem(Problem<T>(shape, Method::omp, {4}, false, Columns::any), true);
    check_problem(Problem<T>(shape, Method::ols, {3}, false, Columns::unit), false);
    check_problem(Problem<T>(shape, Method::ols, {5, tol}, false, Columns::unit), false);
    check_problem(Problem<T>(shape, Method::exchange, {3}, false, Columns::unit), false);
    check_problem(Problem<T>(shape, Method::omp, {3}, true, Columns::any), false);
    check_problem(Problem<T>(shape, Method::ols, {3}, true, Columns::unit), false);
    check_problem(Problem<T>(shape, Method::exchange, {2}, true, Columns::unit), false);
  }
  for (const Shape& shape : kSquares) {
    check_problem(Problem<T>(shape, Method::threshold, {6}, false, Columns::orthonormal), true);
    check_problem(Problem<T>(shape, Method::threshold, {20, 3.0}, false, Columns::orthonormal),
                  false);
  }
}

// Image passes

std::vector<float> random_image(size_t pixels, Random& random) {
  std::vector<float> image;
  double level = 0;
  while (image.size() < pixels)
    image.push_back(float((level += random.normal()) + random.normal()));
  return image;
}

void check_image_sums(const std::vector<float>& numerator, const std::vector<float>& denominator,
                      const reference::ImageSums& expected, const std::string& name) {
  Vector found_image, image, found_weights, weights;
  for (size_t i = 0; i < numerator.size(); ++i) {
    if (!expected.decided[i] || expected.denominator[i] == 0) continue;
    found_image.push_back(double(numerator[i]) / denominator[i]);
    image.push_back(expected.numerator[i] / expected.denominator[i]);
    found_weights.push_back(denominator[i]);
    weights.push_back(expected.denominator[i]);
  }
  expect(2 * image.size() > numerator.size(), name + ": enough pixels that are beyond doubt");
  expect_close(found_image, image, 1e-3, name + ": image");
  expect_close(found_weights, weights, 1e-2, name + ": weights");
}

struct ImageCase {
  std::vector<kronlearn::Axis> axes;
  std::vector<int> n;  // atoms of every mode
};

void check_image_coding(const ImageCase& image_case, Method method, bool masked) {
  Random random(11);
  std::vector<Factor> factors;
  size_t pixels = 1;
  double features = 1;
  for (size_t a = 0; a < image_case.axes.size(); ++a) {
    const int m = image_case.axes[a].patch;
    const bool square = method == Method::threshold;
    factors.push_back(random_factor(m, square ? m : image_case.n[a],
                                    square ? Columns::orthonormal : Columns::unit, random));
    pixels *= size_t(image_case.axes[a].size);
    features *= m;
  }
  const kronlearn::Dictionary<float> dictionary(factors);
  const std::vector<float> image = random_image(pixels, random);
  std::vector<float> known;
  for (size_t i = 0; i < pixels && masked; ++i)
    known.push_back(random.uniform() < 0.2 ? 0.0f : float(0.1 + random.uniform()));
  kronlearn::ImageCoding pass{};
  pass.axes = image_case.axes;
  pass.planes = 1;
  pass.image = image.data();
  pass.dictionary = &dictionary;
  pass.method = method;
  pass.width = 4;
  pass.tol = float(0.8 * std::sqrt(features));
  pass.known = masked ? known.data() : nullptr;
  pass.favour_sparse = true;
  const auto expected = reference::code_image(pass, reference::atoms_of(factors), 1e-4);
  for (const std::string& set_name : kronlearn::instruction_sets()) {
    std::vector<float> numerator(pixels), denominator(pixels);
    pass.instruction_set = &kronlearn::instruction_set(set_name);
    pass.numerator = numerator.data();
    pass.denominator = denominator.data();
    kronlearn::run(pass);
    check_image_sums(numerator, denominator, expected,
                     set_name + " image by " + name_of(method) + (masked ? ", masked" : "") + ", " +
                         std::to_string(image_case.axes.size()) + " axes");
  }
}

void check_group_filtering(const std::vector<kronlearn::Axis>& axes, int planes, int group,
                           bool guided) {
  Random random(13);
  size_t pixels = size_t(planes);
  int features = 1;
  for (const kronlearn::Axis& axis : axes) {
    pixels *= size_t(axis.size);
    features *= axis.patch;
  }
  const std::vector<float> guide = random_image(pixels, random);
  std::vector<float> image = guide, taper, noise;
  for (float& x : image) x += float(random.normal());
  for (int i = 0; i < features; ++i) taper.push_back(float(0.5 + random.uniform()));
  for (size_t i = 0; i < pixels; ++i) noise.push_back(float(features * (0.5 + random.uniform())));
  kronlearn::GroupFiltering pass{};
  pass.axes = axes;
  pass.planes = pass.matched_planes = planes;
  pass.image = image.data();
  pass.group = group;
  pass.guide = guided ? guide.data() : nullptr;
  pass.matched = guide.data();
  pass.noise = noise.data();
  pass.same_noise = planes == 1;
  pass.taper = taper.data();
  const auto expected = reference::filter_groups(pass, 1e-5);
  for (const std::string& set_name : kronlearn::instruction_sets()) {
    std::vector<float> numerator(pixels), denominator(pixels);
    pass.instruction_set = &kronlearn::instruction_set(set_name);
    pass.numerator = numerator.data();
    pass.denominator = denominator.data();
    kronlearn::run(pass);
    check_image_sums(numerator, denominator, expected,
                     set_name + " groups of " + std::to_string(group) +
                         (guided ? ", guided, " : ", ") + std::to_string(axes.size()) + " axes");
  }
}

void check_images() {
  const std::vector<ImageCase> cases = {
      {{{20, 8, 3, 0}, {19, 8, 2, 0}}, {8, 8}},
      {{{13, 5, 2, 0}, {25, 3, 3, 0}}, {7, 4}},
      {{{40, 7, 3, 0}}, {9}},
      {{{7, 3, 2, 0}, {9, 4, 3, 0}, {7, 2, 2, 0}}, {4, 5, 2}},
  };
  for (const ImageCase& image_case : cases)
    for (Method method : {Method::omp, Method::ols, Method::threshold}) {
      check_image_coding(image_case, method, false);
      if (method != Method::threshold) check_image_coding(image_case, method, true);
    }
  for (bool guided : {false, true}) {
    check_group_filtering({{21, 8, 3, 5}, {19, 8, 3, 5}}, 1, 33, guided);
    check_group_filtering({{11, 3, 2, 4}, {30, 5, 3, 6}}, 2, 16, guided);
    check_group_filtering({{33, 8, 5, 100}}, 2, 5, guided);
    check_group_filtering({{6, 3, 2, 2}, {9, 4, 3, 3}, {7, 2, 2, 2}}, 1, 12, guided);
    check_group_filtering({{12, 3, 2, 1}, {13, 3, 2, 1}}, 1, 20, guided);
  }
}

}  // namespace

int main() {
  check_coding<float>();
  check_coding<double>();
  check_images();
  checks::check_convolutions();
  std::string sets;
  for (const std::string& set : kronlearn::instruction_sets()) sets += " " + set;
  std::printf("%d checks with%s: %d failed\n", checks::made(), sets.c_str(), checks::failed());
  return checks::failed() > 0;
}
