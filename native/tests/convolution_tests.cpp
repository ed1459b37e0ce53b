// Sparse coding by convolutions: codes are optimal, and both linear maps are sums over all positions and pixels.
#include "checks.hpp"
#include "convolutional/convolution.hpp"

namespace {

using checks::expect;
using checks::expect_close;
using kronlearn::ConvolutionalCodes;
using Vector = std::vector<double>;

struct Case {
  std::vector<kronlearn::ConvolutionAxis> axes;
  std::vector<int> n;  // short filters of each axis; their products are the atoms
  bool separable;      // whether the kernels are told
  bool weighted;
};

struct Problem {
  Case c;
  kronlearn::Filters filters;
  int64_t pixels = 1, positions = 1, taps = 1;

  explicit Problem(const Case& given) : c(given) {
    checks::Random random(3);
    Vector products = {1};  // (atoms, taps) of the axes so far
    int atoms = 1;
    for (size_t a = 0; a < c.axes.size(); ++a) {
      const int length = c.axes[a].filter, n = c.n[a];
      std::vector<float> factor;
      for (int i = 0; i < n * length; ++i) factor.push_back(float(random.normal()));
      Vector next;
      for (int atom = 0; atom < atoms; ++atom)
        for (int i = 0; i < n; ++i)
          for (int64_t t = 0; t < taps; ++t)
            for (int u = 0; u < length; ++u)
              next.push_back(products[atom * taps + t] * factor[i * length + u]);
      products = next;
      atoms *= n;
      taps *= length;
      pixels *= c.axes[a].size;
      positions *= c.axes[a].positions();
      filters.stages.insert(filters.stages.begin(), {int(a), 1, n, true, factor});
    }
    for (size_t s = 1; s < c.axes.size(); ++s)
      filters.stages[s].groups = filters.stages[s - 1].groups * filters.stages[s - 1].outputs;
    filters.atoms = atoms;
    filters.numbers.assign(products.begin(), products.end());
    if (!c.separable) filters.stages = {{-1, 1, atoms, false, filters.numbers}};
  }

  // Calls visit(pixel, tap) for all numbers of a filter at a position.
  template <class Visit>
  void for_taps(int64_t position, Visit visit) const {
    for (int64_t tap = 0; tap < taps; ++tap) {
      int64_t pixel = 0, step = 1, p = position, t = tap;
      for (size_t a = c.axes.size(); a-- > 0; step *= c.axes[a].size) {
        pixel += (p % c.axes[a].positions() + t % c.axes[a].filter) * step;
        p /= c.axes[a].positions();
        t /= c.axes[a].filter;
      }
      visit(pixel, tap);
    }
  }

  Vector image_of(const ConvolutionalCodes& codes) const {
    Vector image(pixels);
    for (size_t k = 0; k < codes.values.size(); ++k)
      for_taps(codes.positions[k], [&](int64_t pixel, int64_t tap) {
        image[pixel] += double(codes.values[k]) * filters.numbers[codes.atoms[k] * taps + tap];
      });
    return image;
  }
};

// How far the codes are from optimal: |g| ≤ λ where a coefficient is zero, else g = λ sign(x).
double violation(const Problem& problem, const ConvolutionalCodes& codes, const Vector& residual,
                 double penalty) {
  Vector x(problem.positions * problem.filters.atoms);
  for (size_t k = 0; k < codes.values.size(); ++k)
    x[codes.positions[k] * problem.filters.atoms + codes.atoms[k]] = codes.values[k];
  double worst = 0;
  for (int64_t i = 0; i < int64_t(x.size()); ++i) {
    const int64_t atom = i % problem.filters.atoms;
    double g = 0;
    problem.for_taps(i / problem.filters.atoms, [&](int64_t pixel, int64_t tap) {
      g += residual[pixel] * problem.filters.numbers[atom * problem.taps + tap];
    });
    const double off =
        x[i] == 0 ? std::abs(g) - penalty : std::abs(g - std::copysign(penalty, x[i]));
    worst = std::max(worst, off);
  }
  return worst;
}

void check(const Problem& problem, const std::string& set, const std::string& name) {
  checks::Random random(4);
  std::vector<float> image, weights;
  for (int64_t i = 0; i < problem.pixels; ++i) {
    image.push_back(float(3 * random.normal()));
    weights.push_back(random.uniform() < 0.3 ? 0.0f : float(0.5 + random.uniform()));
  }
  if (!problem.c.weighted) weights.assign(image.size(), 1.0f);
  std::vector<float> residual;
  kronlearn::ConvolutionalCoding coding{};
  auto run = [&](int threads) {
    residual.clear();
    for (size_t i = 0; i < image.size(); ++i) residual.push_back(weights[i] * image[i]);
    coding.instruction_set = &kronlearn::instruction_set(set);
    coding.axes = problem.c.axes;
    coding.filters = &problem.filters;
    coding.threads = threads;
    coding.residual = residual.data();
    coding.weights = problem.c.weighted ? weights.data() : nullptr;
    coding.penalty = 8;
    coding.tolerance = 1e-3f;
    coding.max_rounds = 1000;
    coding.codes = {};
    expect(kronlearn::run(coding), name + ": comes to its end");
    return coding.codes;
  };
  const ConvolutionalCodes codes = run(1);
  expect(codes.values.size() > 10, name + ": finds codes");
  const Vector fitted = problem.image_of(codes);
  Vector left;
  for (size_t i = 0; i < image.size(); ++i) left.push_back(weights[i] * (image[i] - fitted[i]));
  expect_close(residual, left, 1e-5, name + ": residual");
  expect(violation(problem, codes, left, coding.penalty) < 3e-3 * coding.penalty,
         name + ": codes are optimal");
  const ConvolutionalCodes in_threads = run(3);
  expect(codes.values == in_threads.values && codes.positions == in_threads.positions,
         name + ": the same bits in three threads");

  std::vector<float> sum = image;
  kronlearn::synthesize(coding, codes, sum.data());
  Vector expected(image.begin(), image.end());
  for (size_t i = 0; i < fitted.size(); ++i) expected[i] += fitted[i];
  expect_close(sum, expected, 1e-5, name + ": synthesis");

  Vector sums(problem.filters.numbers.size()), products(sums.size());
  kronlearn::correlate_codes(coding, codes, image.data(), sums.data());
  for (size_t k = 0; k < codes.values.size(); ++k)
    problem.for_taps(codes.positions[k], [&](int64_t pixel, int64_t tap) {
      products[codes.atoms[k] * problem.taps + tap] += double(codes.values[k]) * image[pixel];
    });
  expect_close(sums, products, 1e-5, name + ": correlation of codes");
}

}  // namespace

void checks::check_convolutions() {
  // More than one tile along an axis, one to three axes, filters longer than rows of vectors.
  const std::vector<Case> cases = {
      {{{300, 20}}, {5}, false, false},
      {{{40, 3}, {75, 5}}, {2, 3}, true, false},
      {{{40, 3}, {75, 5}}, {2, 3}, false, true},
      {{{11, 2}, {9, 3}, {10, 4}}, {2, 2, 2}, true, true},
  };
  for (const Case& c : cases)
    for (const std::string& set : kronlearn::instruction_sets())
      check(Problem(c), set,
            set + " convolution, " + std::to_string(c.axes.size()) + " axes" +
                (c.separable ? ", separable" : "") + (c.weighted ? ", weighted" : ""));
}
