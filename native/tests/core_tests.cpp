// Tests of the core without the Python module, so that they also run on a machine, or in an emulator, without Python.
//
// core_tests FILE runs the cases that write_cases.py has written to the file, with every instruction set of this
// machine, in one thread and in three, which must give the same bits. It prints which results are wrong; then it
// exits with 1.
#include <string>
#include <tuple>
#include <vector>

#include "cases.hpp"
#include "convolutional/convolution.hpp"
#include "images/image.hpp"
#include "moments/atom_sweep.hpp"
#include "moments/mode_sums.hpp"
#include "pass.hpp"

namespace {

using cases::Array;
using cases::Case;
using cases::Results;
using kronlearn::Factor;
using kronlearn::InstructionSet;
using kronlearn::Method;
using kronlearn::Sums;

std::vector<Factor> factors_of(const Case& c) {
  std::vector<Factor> factors;
  auto entry = c["factors"].begin();
  for (size_t i = 0; i < c["m"].size(); ++i) {
    const int m = int(c["m"][i]), n = int(c["n"][i]);
    factors.push_back({m, n, {entry, entry + m * n}});
    entry += m * n;
  }
  return factors;
}

// Codes as a pass writes them, and as a dense matrix (count, atoms).
template <class T>
struct Codes {
  int64_t count;
  int width, atoms;
  std::vector<int32_t> index = std::vector<int32_t>(count * width);
  std::vector<T> value = std::vector<T>(count * width);
  std::vector<int32_t> nonzeros = std::vector<int32_t>(count);

  Array dense() const {
    Array matrix(count * atoms);
    for (int64_t k = 0; k < count; ++k)
      for (int l = 0; l < nonzeros[k]; ++l)
        matrix[k * atoms + index[k * width + l]] = value[k * width + l];
    return matrix;
  }

  void set(const Array& matrix) {
    for (int64_t k = 0; k < count; ++k) {
      nonzeros[k] = 0;
      for (int j = 0; j < atoms; ++j)
        if (const double x = matrix[k * atoms + j]; x != 0) {
          const int64_t at = k * width + nonzeros[k]++;
          index[at] = j;
          value[at] = T(x);
        }
    }
  }
};

template <class T>
class CodingTest {
 public:
  CodingTest(const Case& c, const InstructionSet& set, int threads)
      : case_(c),
        set_(set),
        threads_(threads),
        dictionary_(factors_of(c)),
        samples_(c.as<T>("samples")),
        weights_(c.as<T>("weights")),
        codes_{int64_t(samples_.size()) / dictionary_.features(), int(c.number("width")),
               dictionary_.atoms()} {}

  Results run() {
    const Array sums = run_pass(Sums::none, -1, false);
    results_.emplace_back("codes", codes_.dense());
    results_.emplace_back("residual2", Array{sums[kronlearn::kResidual]});
    if (!case_.has("expected xx")) return results_;
    codes_.set(case_["expected codes"]);
    add_full_moments();
    for (int mode = 0; mode < dictionary_.n_modes(); ++mode) add_mode_moments(mode);
    sweep();
    return results_;
  }

 private:
  // The sums of a pass; with `given`, over the codes as they are.
  Array run_pass(Sums sums, int mode, bool given) {
    kronlearn::Pass<T> pass{};
    pass.block = 16;
    kronlearn::SumTree tree(kronlearn::sums_size(dictionary_, sums, mode),
                            (codes_.count + pass.block - 1) / pass.block);
    pass.dictionary = &dictionary_;
    pass.instruction_set = &set_;
    pass.method = Method(int(case_.number("method")));
    pass.width = codes_.width;
    pass.count = codes_.count;
    pass.chunk = 64;
    pass.chunk_at = [&](int64_t) { return samples_.data(); };
    pass.chunk_done = [](int64_t) {};
    pass.weights = weights_.empty() ? nullptr : weights_.data();
    pass.tol = T(case_.number("tol"));
    pass.codes_given = given;
    pass.index = codes_.index.data();
    pass.value = codes_.value.data();
    pass.nonzeros = codes_.nonzeros.data();
    pass.sums = sums;
    pass.mode = mode;
    pass.tree = &tree;
    pass.threads = threads_;
    kronlearn::run(pass);
    const kronlearn::SumTree::Sums total = tree.total();
    return {total.begin(), total.end()};
  }

  void add_full_moments() {
    const Array sums = run_pass(Sums::full, -1, true);
    const auto xx = sums.begin() + kronlearn::kScalars;
    const auto xy = xx + int64_t(codes_.atoms) * (codes_.atoms + 1) / 2;
    results_.emplace_back("xx", Array(xx, xy));
    results_.emplace_back("xy", Array(xy, sums.end()));
  }

  // From a pass for this mode, and from the full moments: there with three equal terms, so that there are nine equal
  // blocks of P.
  void add_mode_moments(int mode) {
    const std::string number = std::to_string(mode);
    const int n = dictionary_.factor(mode).n, m = dictionary_.factor(mode).m;
    const Array sums = run_pass(Sums::mode, mode, true);
    const auto half = sums.begin() + kronlearn::kScalars;
    Array p(size_t(n) * n);
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) p[i * n + j] = half[i * n + j] + half[j * n + i];
    results_.emplace_back("p" + number, p);
    results_.emplace_back("c" + number, Array(half + n * n, sums.end()));

    constexpr int kTerms = 3;
    std::vector<Array> entries;
    std::vector<kronlearn::Stack> stacks;
    for (const Factor& f : factors_of(case_)) {
      entries.emplace_back();
      for (int term = 0; term < kTerms; ++term)
        entries.back().insert(entries.back().end(), f.entries.begin(), f.entries.end());
      stacks.push_back({kTerms, f.m, f.n, entries.back().data()});
    }
    Array all_p(p.size() * kTerms * kTerms), all_c(size_t(kTerms) * n * m);
    kronlearn::mode_sums(set_, stacks, mode, case_["expected xx"].data(),
                         case_["expected xy"].data(), all_p.data(), all_c.data());
    for (int left = 0; left < kTerms; ++left) {
      for (int right = 0; right < kTerms; ++right) {
        for (int i = 0; i < n; ++i)
          for (int j = 0; j < n; ++j)
            p[i * n + j] = all_p[size_t(left * n + i) * kTerms * n + right * n + j];
        results_.emplace_back("p" + number, p);
      }
      const auto c = all_c.begin() + left * n * m;
      results_.emplace_back("c" + number, Array(c, c + n * m));
    }
  }

  // Approximate K-SVD of the dense dictionary.
  void sweep() {
    Array atoms = case_["atoms"];
    std::vector<int32_t> starts = {0}, indices;
    std::vector<T> values;
    for (int64_t k = 0; k < codes_.count; ++k) {
      const int64_t first = k * codes_.width, end = first + codes_.nonzeros[k];
      indices.insert(indices.end(), &codes_.index[first], codes_.index.data() + end);
      values.insert(values.end(), &codes_.value[first], codes_.value.data() + end);
      starts.push_back(int32_t(indices.size()));
    }
    kronlearn::run(kronlearn::AtomSweep<T>{&set_, codes_.count, dictionary_.features(),
                                           codes_.atoms, samples_.data(), starts.data(),
                                           indices.data(), values.data(), atoms.data()});
    Codes<T> swept = codes_;
    for (int64_t k = 0; k < codes_.count; ++k)
      std::copy(values.begin() + starts[k], values.begin() + starts[k + 1],
                swept.value.begin() + k * codes_.width);
    results_.emplace_back("atoms", atoms);
    results_.emplace_back("swept", swept.dense());
  }

  const Case& case_;
  const InstructionSet& set_;
  const int threads_;
  const kronlearn::Dictionary<T> dictionary_;
  const std::vector<T> samples_, weights_;
  Codes<T> codes_;
  Results results_;
};

// Runs a pass over an image; the quotient of its sums.
template <class Pass>
Results run_image_pass(Pass& pass, const Case& c, const InstructionSet& set, int threads) {
  const std::vector<float> image = c.as<float>("image");
  std::vector<float> numerator(image.size()), denominator(image.size());
  const Array& axes = c["axes"];
  for (size_t i = 0; i < axes.size(); i += 4)
    pass.axes.push_back({int64_t(axes[i]), int(axes[i + 1]), int(axes[i + 2]), int(axes[i + 3])});
  pass.instruction_set = &set;
  pass.threads = threads;
  pass.image = image.data();
  pass.numerator = numerator.data();
  pass.denominator = denominator.data();
  kronlearn::run(pass);
  Array quotient;
  for (size_t i = 0; i < image.size(); ++i)
    quotient.push_back(double(numerator[i]) / double(denominator[i]));
  return {{"image", quotient}};
}

Results code_image(const Case& c, const InstructionSet& set, int threads) {
  const kronlearn::Dictionary<float> dictionary(factors_of(c));
  const std::vector<float> known = c.as<float>("known");
  kronlearn::ImageCoding pass{};
  pass.planes = 1;
  pass.dictionary = &dictionary;
  pass.method = Method(int(c.number("method")));
  pass.width = int(c.number("width"));
  pass.tol = float(c.number("tol"));
  pass.known = known.empty() ? nullptr : known.data();
  pass.favour_sparse = true;
  return run_image_pass(pass, c, set, threads);
}

Results filter_groups(const Case& c, const InstructionSet& set, int threads) {
  const auto guide = c.as<float>("guide"), matched = c.as<float>("matched");
  const auto noise = c.as<float>("noise"), taper = c.as<float>("taper");
  kronlearn::GroupFiltering pass{};
  pass.planes = pass.matched_planes = int(c.number("planes"));
  pass.group = int(c.number("group"));
  pass.guide = guide.empty() ? nullptr : guide.data();
  pass.matched = matched.data();
  pass.noise = noise.data();
  pass.same_noise = noise.size() == 1;
  pass.taper = taper.data();
  return run_image_pass(pass, c, set, threads);
}

// Filters, and the stages that correlate with them: one for each axis, last axes first, or one for all.
kronlearn::Filters filters_of(const Case& c) {
  kronlearn::Filters filters{1, c.as<float>("filters"), {}};
  for (const Factor& f : factors_of(c)) {
    filters.atoms *= f.n;
    std::vector<float> short_filters;  // (n, m)
    for (int j = 0; j < f.n; ++j)
      for (int p = 0; p < f.m; ++p) short_filters.push_back(float(f.entries[p * f.n + j]));
    const int axis = int(filters.stages.size());
    filters.stages.insert(filters.stages.begin(), {axis, 1, f.n, true, short_filters});
  }
  for (size_t s = 1; s < filters.stages.size(); ++s)
    filters.stages[s].groups = filters.stages[s - 1].groups * filters.stages[s - 1].outputs;
  if (c.number("separable") == 0) filters.stages = {{-1, 1, filters.atoms, false, filters.numbers}};
  return filters;
}

// Coefficients from and to maps (atoms, *positions).
kronlearn::ConvolutionalCodes codes_of(const Array& maps, int atoms) {
  kronlearn::ConvolutionalCodes codes;
  const int64_t positions = int64_t(maps.size()) / atoms;
  for (int64_t i = 0; i < int64_t(maps.size()); ++i)
    if (maps[i] != 0) {
      codes.positions.push_back(i % positions);
      codes.atoms.push_back(int32_t(i / positions));
      codes.values.push_back(float(maps[i]));
    }
  return codes;
}

Array maps_of(const kronlearn::ConvolutionalCodes& codes, size_t size, int atoms) {
  Array maps(size);
  for (size_t k = 0; k < codes.values.size(); ++k)
    maps[codes.atoms[k] * (size / atoms) + codes.positions[k]] = codes.values[k];
  return maps;
}

Results convolve(const Case& c, const InstructionSet& set, int threads) {
  const kronlearn::Filters filters = filters_of(c);
  const std::vector<float> image = c.as<float>("image"), weights = c.as<float>("weights");
  std::vector<float> residual = image, synthesis(image.size());
  for (size_t i = 0; i < weights.size(); ++i) residual[i] *= weights[i];
  kronlearn::ConvolutionalCoding coding{};
  coding.instruction_set = &set;
  coding.filters = &filters;
  coding.threads = threads;
  for (size_t axis = 0; axis < c["size"].size(); ++axis)
    coding.axes.push_back({int64_t(c["size"][axis]), int(c["m"][axis])});
  coding.residual = residual.data();
  coding.weights = weights.empty() ? nullptr : weights.data();
  coding.penalty = float(c.number("penalty"));
  coding.tolerance = 1e-5f;
  coding.max_rounds = 3000;
  kronlearn::run(coding);
  const kronlearn::ConvolutionalCodes given = codes_of(c["expected codes"], filters.atoms);
  Array sums(filters.numbers.size());
  kronlearn::synthesize(coding, given, synthesis.data());
  kronlearn::correlate_codes(coding, given, image.data(), sums.data());
  return {{"codes", maps_of(coding.codes, c["expected codes"].size(), filters.atoms)},
          {"residual", {residual.begin(), residual.end()}},
          {"synthesis", {synthesis.begin(), synthesis.end()}},
          {"sums", sums}};
}

template <class T>
Results code(const Case& c, const InstructionSet& set, int threads) {
  return CodingTest<T>(c, set, threads).run();
}

// What runs the cases of a kind, and the share of the largest number by which results may differ.
struct Test {
  std::string kind, precision;
  Results (*run)(const Case&, const InstructionSet&, int threads);
  double tolerance;
};
const std::vector<Test> kTests = {{"coding", "float", code<float>, 2e-4},
                                  {"coding", "double", code<double>, 1e-9},
                                  {"image", "float", code_image, 1e-3},
                                  {"groups", "float", filter_groups, 1e-3},
                                  {"convolution", "float", convolve, 1e-3}};

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::printf("core_tests FILE: the file is written by native/tests/write_cases.py\n");
    return 2;
  }
  int made = 0, failed = 0;
  for (const Case& c : cases::read(arguments[1]))
    for (const Test& test : kTests)
      for (const std::string& set_name : kronlearn::instruction_sets()) {
        if (c.kind != test.kind) continue;
        const InstructionSet& set = kronlearn::instruction_set(set_name);
        const std::string name = set_name + " " + test.precision + " " + c.kind + " " + c.name;
        const Results results = test.run(c, set, 1);
        made += int(results.size());
        failed += cases::compare(c, results, test.tolerance, name);
        if (test.run(c, set, 3) == results) continue;
        ++failed;
        std::printf("FAILED %s: other bits in three threads\n", name.c_str());
      }
  std::printf("%d results, %d failures\n", made, failed);
  return failed > 0;
}
