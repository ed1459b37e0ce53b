#include "reference.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace reference {

using kronlearn::Factor;
using kronlearn::Method;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

namespace {

// a −= x b
void subtract(Vector& a, double x, const Vector& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= x * b[i];
}

void scale(Vector& a, double x) {
  for (double& entry : a) entry *= x;
}

// The orthonormalised atoms of a support, and what they leave of a sample.
struct Basis {
  std::vector<Vector> q;
  Vector residual;

  explicit Basis(Vector sample) : residual(std::move(sample)) {}

  Vector orthogonal_part(Vector atom) const {
    for (int twice = 0; twice < 2; ++twice)
      for (const Vector& direction : q) subtract(atom, dot(direction, atom), direction);
    return atom;
  }
  void add(const Vector& atom) {
    Vector direction = orthogonal_part(atom);
    scale(direction, 1 / std::sqrt(dot(direction, direction)));
    subtract(residual, dot(direction, residual), direction);
    q.push_back(std::move(direction));
  }
  double residual2() const { return dot(residual, residual); }
};

double residual2_of(const std::vector<Vector>& atoms, const std::vector<int>& support,
                    const Vector& sample) {
  Basis basis(sample);
  for (int atom : support) basis.add(atoms[atom]);
  return basis.residual2();
}

// Solves a x = b by Gauss's elimination; a is positive definite.
Vector solve(Matrix a, Vector b) {
  const int n = a.rows;
  for (int c = 0; c < n; ++c)
    for (int i = c + 1; i < n; ++i) {
      const double factor = a(i, c) / a(c, c);
      for (int j = c; j < n; ++j) a(i, j) -= factor * a(c, j);
      b[i] -= factor * b[c];
    }
  for (int i = n - 1; i >= 0; --i) {
    for (int j = i + 1; j < n; ++j) b[i] -= a(i, j) * b[j];
    b[i] /= a(i, i);
  }
  return b;
}

Vector least_squares(const std::vector<Vector>& atoms, const std::vector<int>& support,
                     const Vector& sample) {
  const int n = int(support.size());
  Matrix gram(n, n);
  Vector products(n);
  for (int i = 0; i < n; ++i) {
    products[i] = dot(atoms[support[i]], sample);
    for (int j = 0; j < n; ++j) gram(i, j) = dot(atoms[support[i]], atoms[support[j]]);
  }
  return solve(gram, products);
}

bool contains(const std::vector<int>& support, int atom) {
  return std::find(support.begin(), support.end(), atom) != support.end();
}

// The largest of some numbers, and by how much it is larger than all others.
struct Best {
  double value = -1, second = -1;
  int at = -1, instead_of = -1;

  void consider(double x, int index, int replaced = -1) {
    second = std::max(second, std::min(x, value));
    if (x > value) {
      value = x;
      at = index;
      instead_of = replaced;
    }
  }
  double margin() const { return value - std::max(second, 0.0); }
};

// One atom after the other by the error it takes away: as it is (omp), or with all others fitted anew (ols).
void pursue(const std::vector<Vector>& atoms, bool ols, const Vector& sample, Target target,
            Code& code) {
  const double energy = dot(sample, sample), tol2 = target.tol * target.tol;
  Basis basis(sample);
  for (int step = 0; step < target.width; ++step) {
    if (target.tol >= 0) {
      code.margin = std::min(code.margin, std::abs(basis.residual2() - tol2) / energy);
      if (basis.residual2() <= tol2) break;
    }
    Best best;
    for (int p = 0; p < int(atoms.size()); ++p) {
      if (contains(code.atoms, p)) continue;
      const Vector rest = ols ? basis.orthogonal_part(atoms[p]) : atoms[p];
      const double norm2 = ols ? dot(rest, rest) : 1, product = dot(rest, basis.residual);
      if (norm2 > 1e-6) best.consider(product * product / norm2, p);
    }
    if (best.value <= 1e-9 * energy) break;
    code.margin = std::min(code.margin, best.margin() / energy);
    basis.add(atoms[best.at]);
    code.atoms.push_back(best.at);
  }
}

// The best exchange of one selected atom for another, as long as one helps.
void exchange(const std::vector<Vector>& atoms, const Vector& sample, Code& code) {
  const double energy = dot(sample, sample);
  for (;;) {
    const double before = residual2_of(atoms, code.atoms, sample);
    Best best;
    for (size_t i = 0; i < code.atoms.size(); ++i) {
      Basis others(sample);
      for (size_t l = 0; l < code.atoms.size(); ++l)
        if (l != i) others.add(atoms[code.atoms[l]]);
      for (int p = 0; p < int(atoms.size()); ++p) {
        if (contains(code.atoms, p)) continue;
        const Vector rest = others.orthogonal_part(atoms[p]);
        const double norm2 = dot(rest, rest), product = dot(rest, others.residual);
        if (norm2 <= 1e-6) continue;
        const double gain = before - (others.residual2() - product * product / norm2);
        best.consider(gain, p, int(i));
      }
    }
    code.margin = std::min(code.margin, std::abs(best.value) / energy);
    if (best.value <= 1e-9 * energy) return;
    code.margin = std::min(code.margin, best.margin() / energy);
    code.atoms[best.instead_of] = best.at;
  }
}

// The largest correlations with orthonormal atoms.
void threshold(const std::vector<Vector>& atoms, const Vector& sample, Target target, Code& code) {
  const double energy = dot(sample, sample), tol2 = target.tol * target.tol;
  std::vector<std::pair<double, int>> squares;
  for (int p = 0; p < int(atoms.size()); ++p) {
    const double x = dot(atoms[p], sample);
    squares.push_back({x * x, p});
  }
  std::sort(squares.rbegin(), squares.rend());
  double left = energy;
  for (const auto& [square, p] : squares) {
    const size_t chosen = code.atoms.size();
    if (target.tol >= 0) code.margin = std::min(code.margin, std::abs(left - tol2) / energy);
    if (int(chosen) == target.width || (target.tol >= 0 && left <= tol2)) {
      if (chosen > 0)
        code.margin = std::min(code.margin, (squares[chosen - 1].first - square) / energy);
      return;
    }
    code.atoms.push_back(p);
    left -= square;
  }
}

}  // namespace

Matrix atoms_of(const std::vector<Factor>& factors) {
  Matrix atoms(1, 1);
  atoms(0, 0) = 1;
  for (const Factor& f : factors) {
    Matrix next(atoms.rows * f.n, atoms.columns * f.m);
    for (int i = 0; i < atoms.rows; ++i)
      for (int p = 0; p < atoms.columns; ++p)
        for (int j = 0; j < f.n; ++j)
          for (int q = 0; q < f.m; ++q)
            next(i * f.n + j, p * f.m + q) = atoms(i, p) * f.entries[size_t(q) * f.n + j];
    atoms = std::move(next);
  }
  return atoms;
}

std::vector<int> split(int number, const std::vector<int>& sizes) {
  std::vector<int> index(sizes.size());
  for (size_t i = sizes.size(); i-- > 0; number /= sizes[i]) index[i] = number % sizes[i];
  return index;
}

Code code(const Matrix& atoms, Method method, const Vector& sample, const Vector& weights,
          Target target) {
  Vector y = sample, norms;
  std::vector<Vector> unit;
  for (size_t i = 0; i < weights.size(); ++i) y[i] *= std::sqrt(weights[i]);
  for (int p = 0; p < atoms.rows; ++p) {
    Vector atom = atoms.row(p);
    for (size_t i = 0; i < weights.size(); ++i) atom[i] *= std::sqrt(weights[i]);
    norms.push_back(std::sqrt(dot(atom, atom)));
    if (norms[p] > 0) scale(atom, 1 / norms[p]);
    unit.push_back(std::move(atom));
  }
  Code code;
  if (method == Method::threshold)
    threshold(unit, y, target, code);
  else
    pursue(unit, method != Method::omp, y, target, code);
  if (method == Method::exchange) exchange(unit, y, code);
  std::sort(code.atoms.begin(), code.atoms.end());
  code.values = least_squares(unit, code.atoms, y);
  code.residual2 = residual2_of(unit, code.atoms, y);
  for (size_t l = 0; l < code.atoms.size(); ++l) code.values[l] /= norms[code.atoms[l]];
  return code;
}

ModeSums mode_sums(const std::vector<Factor>& factors, const std::vector<Vector>& samples,
                   const std::vector<Code>& codes, int mode) {
  std::vector<int> n, m;
  for (const Factor& f : factors) {
    n.push_back(f.n);
    m.push_back(f.m);
  }
  auto entry = [&](int i, int p, int q) { return factors[i].entries[size_t(p) * n[i] + q]; };
  ModeSums sums{{n[mode], n[mode]}, {n[mode], m[mode]}};
  for (size_t k = 0; k < codes.size(); ++k)
    for (size_t l = 0; l < codes[k].atoms.size(); ++l) {
      const std::vector<int> at = split(codes[k].atoms[l], n);
      for (size_t t = 0; t < codes[k].atoms.size(); ++t) {
        const std::vector<int> other = split(codes[k].atoms[t], n);
        double product = codes[k].values[l] * codes[k].values[t];
        for (int i = 0; i < int(n.size()); ++i) {
          double gram = 0;
          for (int p = 0; p < m[i]; ++p) gram += entry(i, p, at[i]) * entry(i, p, other[i]);
          if (i != mode) product *= gram;
        }
        sums.p(at[mode], other[mode]) += product;
      }
      for (int p = 0; p < int(samples[k].size()); ++p) {
        const std::vector<int> pixel = split(p, m);
        double product = codes[k].values[l] * samples[k][p];
        for (int i = 0; i < int(m.size()); ++i)
          if (i != mode) product *= entry(i, pixel[i], at[i]);
        sums.c(at[mode], pixel[mode]) += product;
      }
    }
  return sums;
}

void sweep_atoms(Matrix& atoms, const std::vector<Vector>& samples, std::vector<Code>& codes) {
  for (int j = 0; j < atoms.rows; ++j) {
    std::vector<std::pair<double*, Vector>> errors;  // of the samples that use the atom, without it
    Vector sum(atoms.columns);
    for (size_t k = 0; k < codes.size(); ++k) {
      const auto found = std::find(codes[k].atoms.begin(), codes[k].atoms.end(), j);
      if (found == codes[k].atoms.end()) continue;
      Vector error = samples[k];
      for (size_t l = 0; l < codes[k].atoms.size(); ++l)
        if (codes[k].atoms[l] != j)
          subtract(error, codes[k].values[l], atoms.row(codes[k].atoms[l]));
      double* value = &codes[k].values[found - codes[k].atoms.begin()];
      subtract(sum, -*value, error);
      errors.emplace_back(value, std::move(error));
    }
    if (errors.empty()) continue;
    const double largest = *std::max_element(
        sum.begin(), sum.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
    scale(sum, (largest < 0 ? -1 : 1) / std::sqrt(dot(sum, sum)));
    std::copy(sum.begin(), sum.end(), atoms.entries.begin() + size_t(j) * atoms.columns);
    for (auto& [value, error] : errors) *value = dot(sum, error);
  }
}

namespace {

// Where patches of an image begin, and their pixels.
class Patches {
 public:
  explicit Patches(const std::vector<kronlearn::Axis>& axes) : axes_(axes) {
    for (const kronlearn::Axis& axis : axes) {
      sizes_.push_back(int(axis.size));
      patch_.push_back(axis.patch);
      std::vector<int> along;
      for (int start = 0; start < axis.size - axis.patch; start += axis.stride)
        along.push_back(start);
      along.push_back(int(axis.size) - axis.patch);
      counts_.push_back(int(along.size()));
      starts_.push_back(std::move(along));
    }
  }

  int pixels() const { return product(sizes_); }
  int features() const { return product(patch_); }
  int count() const { return product(counts_); }

  std::vector<int> start(int number) const {
    std::vector<int> place = split(number, counts_);
    for (size_t a = 0; a < place.size(); ++a) place[a] = starts_[a][place[a]];
    return place;
  }

  // The pixels of the patch that begins at a place.
  std::vector<int> pixels_at(const std::vector<int>& place) const {
    std::vector<int> pixels;
    for (int f = 0; f < features(); ++f) {
      const std::vector<int> inside = split(f, patch_);
      int pixel = 0;
      for (size_t a = 0; a < place.size(); ++a) pixel = pixel * sizes_[a] + place[a] + inside[a];
      pixels.push_back(pixel);
    }
    return pixels;
  }

  // All places within the window around a place, in C order.
  std::vector<std::vector<int>> window(const std::vector<int>& place) const {
    std::vector<int> first, counts;
    for (size_t a = 0; a < place.size(); ++a) {
      const int last = std::min(place[a] + axes_[a].window, sizes_[a] - patch_[a]);
      first.push_back(std::max(place[a] - axes_[a].window, 0));
      counts.push_back(last - first[a] + 1);
    }
    std::vector<std::vector<int>> places;
    for (int i = 0; i < product(counts); ++i) {
      places.push_back(split(i, counts));
      for (size_t a = 0; a < place.size(); ++a) places.back()[a] += first[a];
    }
    return places;
  }

 private:
  static int product(const std::vector<int>& numbers) {
    return std::accumulate(numbers.begin(), numbers.end(), 1, std::multiplies<>());
  }

  const std::vector<kronlearn::Axis>& axes_;
  std::vector<int> sizes_, patch_, counts_;
  std::vector<std::vector<int>> starts_;
};

Vector gather(const float* image, const std::vector<int>& pixels) {
  Vector patch;
  for (int pixel : pixels) patch.push_back(image[pixel]);
  return patch;
}

double mean_of(const Vector& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / double(numbers.size());
}

void add_patch(ImageSums& sums, int first, const std::vector<int>& pixels, const Vector& patch,
               double weight, const float* taper, bool decided) {
  for (size_t i = 0; i < pixels.size(); ++i) {
    const int at = first + pixels[i];
    const double w = weight * (taper ? taper[i] : 1);
    sums.numerator[at] += w * patch[i];
    sums.denominator[at] += w;
    if (!decided) sums.decided[at] = false;
  }
}

// The patches most similar to the one at a place; false where the choice is within rounding.
bool match(const kronlearn::GroupFiltering& pass, const Patches& patches,
           const std::vector<int>& place, double least_margin,
           std::vector<std::vector<int>>& group) {
  const std::vector<int> here = patches.pixels_at(place);
  std::vector<std::pair<double, size_t>> distances;
  const std::vector<std::vector<int>> window = patches.window(place);
  for (size_t i = 0; i < window.size(); ++i) {
    const std::vector<int> there = patches.pixels_at(window[i]);
    double distance = window[i] == place ? -1 : 0;
    for (int plane = 0; plane < pass.matched_planes; ++plane)
      for (size_t f = 0; f < here.size(); ++f) {
        const float* pixels = pass.matched + int64_t(plane) * patches.pixels();
        const double difference = double(pixels[here[f]]) - pixels[there[f]];
        distance += difference * difference;
      }
    distances.push_back({distance, i});
  }
  std::sort(distances.begin(), distances.end());
  const size_t taken = std::min(size_t(pass.group), distances.size());
  const bool decided =
      taken == distances.size() ||
      distances[taken].first - distances[taken - 1].first > least_margin * distances[taken].first;
  distances.resize(taken);
  // In the order of the window, some of which are taken again.
  if (taken < size_t(pass.group))
    std::sort(distances.begin(), distances.end(),
              [](const auto& a, const auto& b) { return a.second < b.second; });
  for (int k = 0; k < pass.group; ++k)
    group.push_back(patches.pixels_at(window[distances[k % taken].second]));
  return decided;
}

Matrix inverse(const Matrix& a) {
  Matrix result(a.rows, a.rows);
  for (int j = 0; j < a.rows; ++j) {
    Vector unit(a.rows);
    unit[j] = 1;
    const Vector column = solve(a, unit);
    for (int i = 0; i < a.rows; ++i) result(i, j) = column[i];
  }
  return result;
}

// Θ = I − D (G Gᵀ + D)⁻¹, applied to the samples; Θ is returned.
Matrix ridge(std::vector<Vector>& samples, std::vector<Vector> guides, const Vector& noise) {
  const int k = int(samples.size());
  const bool guided = !guides.empty();
  if (!guided) guides = samples;
  double mean = 0, trace = 0;
  for (const Vector& g : guides) mean += mean_of(g) / k;
  for (Vector& g : guides)
    for (double& x : g) x -= mean;
  Matrix gram(k, k);
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < k; ++j) gram(i, j) = dot(guides[i], guides[j]);
  for (int i = 0; i < k; ++i) trace += gram(i, i);
  for (int i = 0; i < k; ++i) gram(i, i) += (guided ? 1 : 0.01) * noise[i] + 3e-7 * trace;
  const Matrix inverted = inverse(gram);
  Matrix theta(k, k);
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < k; ++j) {
      const double kept = guided ? noise[i] : std::min(noise[i], 2 / inverted(i, i));
      theta(i, j) = (i == j ? 1 : 0) - kept * inverted(i, j);
    }
  std::vector<Vector> filtered(k, Vector(samples[0].size(), mean));
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < k; ++j)
      for (size_t f = 0; f < samples[j].size(); ++f)
        filtered[i][f] += theta(i, j) * (samples[j][f] - mean);
  samples = std::move(filtered);
  return theta;
}

}  // namespace

ImageSums code_image(const kronlearn::ImageCoding& pass, const Matrix& atoms, double least_margin) {
  const Patches patches(pass.axes);
  const size_t size = patches.pixels();
  ImageSums sums{Vector(size), Vector(size), std::vector<bool>(size, true)};
  for (int number = 0; number < patches.count(); ++number) {
    const std::vector<int> pixels = patches.pixels_at(patches.start(number));
    Vector patch = gather(pass.image, pixels), weights;
    if (pass.known) weights = gather(pass.known, pixels);
    const double importance = pass.known ? mean_of(weights) : 1;
    if (importance <= 0) continue;
    const double features = double(patch.size());
    const double mean = pass.known ? dot(patch, weights) / (importance * features) : mean_of(patch);
    for (double& x : patch) x -= mean;
    const auto known =
        std::count_if(weights.begin(), weights.end(), [](double w) { return w > 0; });
    const double share_known = pass.known ? double(known) / features : 1;
    const double tol = pass.tol * std::sqrt(share_known);
    const Code found = code(atoms, pass.method, patch, weights, {pass.width, tol});
    Vector approximation(patch.size(), mean);
    for (size_t l = 0; l < found.atoms.size(); ++l)
      subtract(approximation, -found.values[l], atoms.row(found.atoms[l]));
    const double share = pass.favour_sparse ? 1.0 / (1 + double(found.atoms.size())) : 1;
    add_patch(sums, 0, pixels, approximation, importance * share, nullptr,
              found.margin > least_margin);
  }
  return sums;
}

ImageSums filter_groups(const kronlearn::GroupFiltering& pass, double least_margin) {
  const Patches patches(pass.axes);
  const size_t size = size_t(patches.pixels()) * pass.planes;
  ImageSums sums{Vector(size), Vector(size), std::vector<bool>(size, true)};
  for (int number = 0; number < patches.count(); ++number) {
    std::vector<std::vector<int>> group;
    const bool decided = match(pass, patches, patches.start(number), least_margin, group);
    for (int plane = 0; plane < pass.planes; ++plane) {
      const int first = plane * patches.pixels();
      std::vector<Vector> samples, guides;
      Vector noise;
      for (const std::vector<int>& pixels : group) {
        samples.push_back(gather(pass.image + first, pixels));
        noise.push_back(pass.noise[pass.same_noise ? 0 : first + pixels[0]]);
        if (pass.guide) guides.push_back(gather(pass.guide + first, pixels));
      }
      const Matrix theta = ridge(samples, guides, noise);
      for (int k = 0; k < pass.group; ++k) {
        const double norm2 = std::max(dot(theta.row(k), theta.row(k)), 1.0 / pass.group);
        add_patch(sums, first, group[k], samples[k], 1 / norm2, pass.taper, decided);
      }
    }
  }
  return sums;
}

}  // namespace reference
