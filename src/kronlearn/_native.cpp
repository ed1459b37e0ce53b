// Translates between Python and the core in native/: checks shapes, releases the GIL, polls for signals.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "convolutional/convolution.hpp"
#include "images/image.hpp"
#include "kronecker/columns.hpp"
#include "moments/atom_sweep.hpp"
#include "moments/mode_sums.hpp"
#include "moments/packing.hpp"
#include "pass.hpp"
#include "runtime/instruction_sets.hpp"
#include "runtime/thread_pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <class T>
using Optional = std::optional<Array<T>>;

template <class T>
T* pointer(const Optional<T>& array, size_t size, const char* name) {
  if (!array) return nullptr;
  if (array->size() != size)
    throw nb::value_error((std::string(name) + " has " + std::to_string(array->size()) +
                           " entries; expected " + std::to_string(size))
                              .c_str());
  return array->data();
}

std::vector<kronlearn::Factor> copy_factors(const std::vector<Array<const double>>& factors) {
  std::vector<kronlearn::Factor> copies;
  for (const auto& f : factors) {
    if (f.ndim() != 2) throw nb::value_error("a factor must be a matrix");
    copies.push_back({int(f.shape(0)), int(f.shape(1)), {f.data(), f.data() + f.size()}});
  }
  return copies;
}

kronlearn::Method method_named(const std::string& name) {
  if (name == "omp") return kronlearn::Method::omp;
  if (name == "ols") return kronlearn::Method::ols;
  if (name == "exchange") return kronlearn::Method::exchange;
  if (name == "threshold") return kronlearn::Method::threshold;
  throw nb::value_error(("unknown method " + name).c_str());
}

// Asks Python now and then whether to stop. What a signal handler raised is kept here until the threads have
// ended: other calls of Python must not find it set.
class Interrupt {
 public:
  // Runs signal handlers and, unless it is null or None, a function of the share done; true if one of them
  // raised. Called without the GIL, so no argument may touch a reference count.
  bool raised(double share = 0, PyObject* progress = nullptr) {
    nb::gil_scoped_acquire gil;
    bool failed = PyErr_CheckSignals() != 0;
    if (!failed && progress && progress != Py_None) {
      PyObject* answer = PyObject_CallFunction(progress, "d", share);
      Py_XDECREF(answer);
      failed = answer == nullptr;
    }
    if (failed) error_.emplace();
    return failed;
  }

  // Raises what there is to raise, now that the threads have ended.
  void raise_again() const {
    if (error_) throw nb::python_error(*error_);
    throw std::runtime_error("the pass was stopped: Python is ending");
  }

  bool is_set() const { return error_.has_value(); }

 private:
  std::optional<nb::python_error> error_;
};

kronlearn::Sums sums_named(const std::string& name) {
  if (name == "none") return kronlearn::Sums::none;
  if (name == "full") return kronlearn::Sums::full;
  if (name == "xy") return kronlearn::Sums::xy;
  if (name == "mode") return kronlearn::Sums::mode;
  if (name == "mode-xy") return kronlearn::Sums::mode_xy;
  throw nb::value_error(("unknown sums " + name).c_str());
}

// Copies numbers into an array of its own.
template <class Vector>
nb::object own_array(Vector numbers, std::vector<size_t> shape) {
  auto* kept = new Vector(std::move(numbers));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Vector*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, typename Vector::value_type>(
      kept->data(), shape.size(), shape.data(), std::move(owner)));
}

// Levels (k), indices (k) and sums (k, size) of a tree's nodes.
nb::tuple tree_nodes(const kronlearn::SumTree& tree) {
  std::vector<int64_t> levels, indices;
  kronlearn::SumTree::Sums sums;
  tree.for_each([&](kronlearn::SumTree::NodeKey key, const kronlearn::SumTree::Sums& node) {
    levels.push_back(key.second);
    indices.push_back(key.first >> key.second);
    sums.insert(sums.end(), node.begin(), node.end());
  });
  const size_t count = levels.size();
  return nb::make_tuple(own_array(std::move(levels), {count}),
                        own_array(std::move(indices), {count}),
                        own_array(std::move(sums), {count, tree.size()}));
}

void add_to_tree(kronlearn::SumTree& tree, int level, int64_t index, Array<const double> sums) {
  kronlearn::SumTree::Sums copy(sums.data(), sums.data() + sums.size());
  tree.add(level, index, copy);
}

// Samples in chunks from a Python object's get(number), which are given back to its done(number).
template <class T>
void read_from(kronlearn::Pass<T>& pass, const nb::object& feed) {
  const int64_t features = pass.dictionary->features(), chunk = pass.chunk, count = pass.count;
  pass.chunk_at = [&feed, features, chunk, count](int64_t number) -> const T* {
    nb::gil_scoped_acquire gil;
    const nb::object samples = feed.attr("get")(number);
    if (samples.is_none()) return nullptr;
    const auto array = nb::cast<Array<const T>>(samples, false);
    const int64_t size = std::min(chunk, count - number * chunk);
    return int64_t(array.size()) == size * features ? array.data() : nullptr;
  };
  pass.chunk_done = [&feed](int64_t number) {
    nb::gil_scoped_acquire gil;
    feed.attr("done")(number);
  };
}

template <class T>
void check(const kronlearn::Pass<T>& pass) {
  if (pass.count < 0 || pass.block < 1 || pass.chunk < pass.block || pass.chunk % pass.block != 0)
    throw nb::value_error("chunks must be whole numbers of blocks");
  if (pass.width < 1) throw nb::value_error("width must be positive");
  if (pass.first < 0 || pass.first % pass.block != 0)
    throw nb::value_error("samples must begin where a block does");
  if (pass.codes_given && !(pass.index && pass.value && pass.nonzeros))
    throw nb::value_error("codes are needed for this pass");
  const bool of_a_mode = pass.sums >= kronlearn::Sums::mode;
  if (of_a_mode && (pass.mode < 0 || pass.mode >= pass.dictionary->n_modes()))
    throw nb::value_error("no such mode");
  if (pass.tree->size() != kronlearn::sums_size(*pass.dictionary, pass.sums, pass.mode))
    throw nb::value_error("the tree holds sums of another size");
}

// Runs a pass without the GIL, but for polling.
template <class T>
kronlearn::PassResult run_interruptibly(kronlearn::Pass<T>& pass) {
  const kronlearn::RunningPass running;
  Interrupt interrupt;
  pass.cancelled = [&](double) { return interrupt.raised(); };
  kronlearn::PassResult result;
  try {
    nb::gil_scoped_release nogil;
    result = kronlearn::run(pass);
  } catch (const std::exception&) {
    if (interrupt.is_set()) interrupt.raise_again();
    throw;
  }
  if (result.cancelled) interrupt.raise_again();
  return result;
}

// The first sample that is not finite, or −1; then squared residuals (k) and numbers (k) of the worst samples.
nb::tuple as_tuple(const kronlearn::PassResult& result) {
  std::vector<double> residual2;
  std::vector<int64_t> samples;
  for (const kronlearn::WorstSample& worst : result.worst) {
    residual2.push_back(worst.residual2);
    samples.push_back(worst.sample);
  }
  const size_t count = samples.size();
  return nb::make_tuple(result.not_finite, own_array(std::move(residual2), {count}),
                        own_array(std::move(samples), {count}));
}

template <class T>
nb::tuple run_pass(const kronlearn::Dictionary<T>& dictionary, nb::object feed, int64_t count,
                   int64_t chunk, const std::string& method, int width, kronlearn::SumTree& tree,
                   const std::string& sums, int mode, Optional<const T> weights, T tol,
                   Optional<const T> tols, bool given, int64_t first, size_t n_worst,
                   Optional<int32_t> index, Optional<T> value, Optional<int32_t> nonzeros,
                   int threads, int64_t block, int file, int64_t file_offset,
                   const std::string& instruction_set) {
  const size_t features = dictionary.features();
  kronlearn::Pass<T> pass{};
  pass.dictionary = &dictionary;
  pass.instruction_set = &kronlearn::instruction_set(instruction_set);
  pass.method = method_named(method);
  pass.width = width;
  pass.count = count;
  pass.chunk = chunk;
  pass.file = file;
  pass.file_offset = file_offset;
  pass.weights = pointer<const T>(weights, count * features, "weights");
  pass.tol = tol;
  pass.tols = pointer<const T>(tols, count, "tols");
  pass.codes_given = given;
  pass.index = pointer<int32_t>(index, count * width, "index");
  pass.value = pointer<T>(value, count * width, "value");
  pass.nonzeros = pointer<int32_t>(nonzeros, count, "nonzeros");
  pass.sums = sums_named(sums);
  pass.mode = mode;
  pass.tree = &tree;
  pass.first = first;
  pass.n_worst = n_worst;
  pass.threads = threads;
  pass.block = block;
  check(pass);
  read_from(pass, feed);
  return as_tuple(run_interruptibly(pass));
}

// A matrix of as many rows and columns is inverted for every group.
constexpr int kMostInGroup = 1024;

// One (size, patch, stride, window) for each axis of an image.
using Axes = std::vector<std::tuple<int64_t, int, int, int>>;

// The parts that all passes over images share.
void prepare(kronlearn::ImagePass& pass, const Axes& axes, const Array<const float>& image,
             const Array<float>& numerator, const Array<float>& denominator, int threads,
             const std::string& instruction_set) {
  size_t pixels = 1;
  for (const auto& [size, patch, stride, window] : axes) {
    if (patch < 1 || stride < 1 || stride > patch || window < 0 || size < patch)
      throw nb::value_error("patches do not fit the image");
    if (size_t(size) > image.size() / pixels) throw nb::value_error("image does not fit the axes");
    pixels *= size_t(size);
    pass.axes.push_back({size, patch, stride, window});
  }
  if (axes.empty() || image.size() == 0 || image.size() % pixels ||
      numerator.size() != image.size() || denominator.size() != image.size())
    throw nb::value_error("image, numerator and denominator do not fit the axes");
  pass.planes = int(image.size() / pixels);
  pass.image = image.data();
  pass.numerator = numerator.data();
  pass.denominator = denominator.data();
  pass.threads = threads;
  pass.instruction_set = &kronlearn::instruction_set(instruction_set);
}

int64_t features_of(const kronlearn::ImagePass& pass) {
  int64_t features = 1;
  for (const kronlearn::Axis& axis : pass.axes) features *= axis.patch;
  return features;
}

// Runs work() without the GIL; it says whether it came to its end. `stoppable` asks whether to stop.
template <class Stoppable, class Work>
void run_with_progress(Stoppable& stoppable, const nb::object& progress, Work work) {
  const kronlearn::RunningPass running;
  Interrupt interrupt;
  stoppable.cancelled = [&](double share) { return interrupt.raised(share, progress.ptr()); };
  bool finished;
  {
    nb::gil_scoped_release nogil;
    finished = work();
  }
  if (!finished) interrupt.raise_again();
}

template <class Pass>
void run_image_pass(Pass& pass, const nb::object& progress) {
  run_with_progress(pass, progress, [&] { return kronlearn::run(pass); });
}

void code_image(const kronlearn::Dictionary<float>& dictionary, Array<const float> image,
                Array<float> numerator, Array<float> denominator, const Axes& axes,
                const std::string& method, int width, float tol, Optional<const float> known,
                bool favour_sparse, int threads, nb::object progress,
                const std::string& instruction_set) {
  kronlearn::ImageCoding pass{};
  prepare(pass, axes, image, numerator, denominator, threads, instruction_set);
  if (features_of(pass) != dictionary.features() || pass.planes != 1 || width < 1)
    throw nb::value_error("patches do not fit the dictionary");
  pass.dictionary = &dictionary;
  pass.method = method_named(method);
  pass.width = width;
  pass.tol = tol;
  pass.known = pointer<const float>(known, image.size(), "known");
  pass.favour_sparse = favour_sparse;
  run_image_pass(pass, progress);
}

void filter_groups(Array<const float> image, Optional<const float> guide,
                   Array<const float> matched, Array<float> numerator, Array<float> denominator,
                   const Axes& axes, int group, Array<const float> taper, Array<const float> noise,
                   int threads, nb::object progress, const std::string& instruction_set) {
  kronlearn::GroupFiltering pass{};
  prepare(pass, axes, image, numerator, denominator, threads, instruction_set);
  const size_t pixels = image.size() / size_t(pass.planes);
  if (group < 1 || group > kMostInGroup || int64_t(taper.size()) != features_of(pass) ||
      matched.size() == 0 || matched.size() % pixels ||
      (noise.size() != 1 && noise.size() != image.size()))
    throw nb::value_error("groups do not fit the image");
  pass.group = group;
  pass.guide = pointer<const float>(guide, image.size(), "guide");
  pass.matched_planes = int(matched.size() / pixels);
  pass.matched = matched.data();
  pass.noise = noise.data();
  pass.same_noise = noise.size() == 1;
  pass.taper = taper.data();
  run_image_pass(pass, progress);
}

// Short filters, or whole ones, as FilterStage has them: (axis, groups, outputs, shared, numbers).
using Stages = std::vector<std::tuple<int, int, int, bool, Array<const float>>>;

kronlearn::Filters make_filters(Array<const float> numbers, const Stages& stages) {
  if (numbers.ndim() < 2) throw nb::value_error("filters need an axis for their number");
  kronlearn::Filters filters{
      int(numbers.shape(0)), {numbers.data(), numbers.data() + numbers.size()}, {}};
  int64_t inputs = 1;
  for (const auto& [axis, groups, outputs, shared, taps] : stages) {
    if (filters.atoms < 1 || groups != inputs || axis < -1 || axis >= int(numbers.ndim()) - 1 ||
        groups < 1 || outputs < 1)
      throw nb::value_error("stages do not fit the filters");
    const size_t length = axis < 0 ? numbers.size() / numbers.shape(0) : numbers.shape(axis + 1);
    if (taps.size() != (shared ? 1 : size_t(groups)) * size_t(outputs) * length)
      throw nb::value_error("stages do not fit the filters");
    inputs = int64_t(groups) * outputs;
    filters.stages.push_back(
        {axis, groups, outputs, shared, {taps.data(), taps.data() + taps.size()}});
  }
  if (stages.empty() ||
      filters.stages.back().groups * filters.stages.back().outputs != filters.atoms)
    throw nb::value_error("stages do not fit the filters");
  return filters;
}

// Coefficients as (positions, atoms, values).
using Codes = std::tuple<Array<const int64_t>, Array<const int32_t>, Array<const float>>;

// What everything that works with convolutions needs; `image` has as many axes as a filter.
template <class T>
kronlearn::ConvolutionalCodes prepare(kronlearn::Convolution& convolution,
                                      const kronlearn::Filters& filters,
                                      const Array<const float>& numbers, const Array<T>& image,
                                      const Codes& codes, int threads,
                                      const std::string& instruction_set) {
  int64_t positions = 1;
  if (image.ndim() + 1 != numbers.ndim()) throw nb::value_error("image and filters differ in axes");
  for (size_t a = 0; a < image.ndim(); ++a) {
    const kronlearn::ConvolutionAxis axis{int64_t(image.shape(a)), int(numbers.shape(a + 1))};
    if (axis.filter < 1 || axis.positions() < 1) throw nb::value_error("filters exceed the image");
    positions *= axis.positions();
    convolution.axes.push_back(axis);
  }
  convolution.filters = &filters;
  convolution.threads = threads;
  convolution.instruction_set = &kronlearn::instruction_set(instruction_set);
  const auto& [at, atoms, values] = codes;
  if (at.size() != atoms.size() || at.size() != values.size())
    throw nb::value_error("codes differ in length");
  for (size_t k = 0; k < at.size(); ++k)
    if (at.data()[k] < 0 || at.data()[k] >= positions || atoms.data()[k] < 0 ||
        atoms.data()[k] >= filters.atoms)
      throw nb::value_error("codes do not fit the image");
  return {{at.data(), at.data() + at.size()},
          {atoms.data(), atoms.data() + atoms.size()},
          {values.data(), values.data() + values.size()}};
}

nb::tuple code_convolutional(Array<float> residual, Optional<const float> weights,
                             Array<const float> filters, const Stages& stages, const Codes& codes,
                             float penalty, float tolerance, int max_rounds, int threads,
                             nb::object progress, const std::string& instruction_set) {
  const kronlearn::Filters made = make_filters(filters, stages);
  kronlearn::ConvolutionalCoding coding{};
  coding.codes = prepare(coding, made, filters, residual, codes, threads, instruction_set);
  coding.residual = residual.data();
  coding.weights = pointer<const float>(weights, residual.size(), "weights");
  coding.penalty = penalty;
  coding.tolerance = tolerance;
  coding.max_rounds = max_rounds;
  run_with_progress(coding, progress, [&] { return kronlearn::run(coding); });
  const size_t count = coding.codes.values.size();
  return nb::make_tuple(own_array(std::move(coding.codes.positions), {count}),
                        own_array(std::move(coding.codes.atoms), {count}),
                        own_array(std::move(coding.codes.values), {count}), coding.violation);
}

void synthesize_convolutional(Array<float> image, Array<const float> filters, const Stages& stages,
                              const Codes& codes, int threads, const std::string& instruction_set) {
  const kronlearn::Filters made = make_filters(filters, stages);
  kronlearn::Convolution convolution{};
  const auto given = prepare(convolution, made, filters, image, codes, threads, instruction_set);
  run_with_progress(convolution, nb::none(),
                    [&] { return kronlearn::synthesize(convolution, given, image.data()); });
}

void correlate_codes(Array<const float> image, Array<const float> filters, const Stages& stages,
                     const Codes& codes, Array<double> sums, int threads,
                     const std::string& instruction_set) {
  const kronlearn::Filters made = make_filters(filters, stages);
  kronlearn::Convolution convolution{};
  const auto given = prepare(convolution, made, filters, image, codes, threads, instruction_set);
  if (sums.size() != filters.size()) throw nb::value_error("sums do not fit the filters");
  run_with_progress(convolution, nb::none(), [&] {
    return kronlearn::correlate_codes(convolution, given, image.data(), sums.data());
  });
}

template <class T, class Index>
void compress(Array<const int32_t> index, Array<const T> value, Array<const int32_t> nonzeros,
              Array<const int64_t> starts, Array<Index> indices, Array<T> data, int threads) {
  const size_t count = nonzeros.size(), width = count ? index.size() / count : 0;
  if (index.size() != count * width || value.size() != index.size() || starts.size() != count + 1 ||
      indices.size() != data.size())
    throw nb::value_error("compress: the arrays do not fit together");
  const kronlearn::CodesView<T> codes = {int64_t(count), int(width),     0, nullptr, index.data(),
                                         value.data(),   nonzeros.data()};
  const kronlearn::Compression<T, Index> compression = {codes, starts.data(), indices.data(),
                                                        data.data(), int64_t(data.size())};
  const kronlearn::RunningPass running;
  nb::gil_scoped_release nogil;
  kronlearn::run(compression, threads);
}

nb::object symmetric(Array<const double> packed, size_t n) {
  if (n > (size_t(1) << 31) || packed.size() != n * (n + 1) / 2)
    throw nb::value_error("a packed triangle has n (n + 1) / 2 entries");
  std::vector<double> full(n * n);
  {
    nb::gil_scoped_release nogil;
    kronlearn::unpack_symmetric(packed.data(), int64_t(n), full.data());
  }
  return own_array(std::move(full), {n, n});
}

// P (terms · n, terms · n), or None without S_xx, and Cᵀ (terms · n, m) of a mode.
nb::tuple mode_sums(const std::vector<Array<const double>>& stacks, size_t mode,
                    Optional<const double> triangle, Array<const double> xy,
                    const std::string& instruction_set) {
  std::vector<kronlearn::Stack> factors;
  size_t features = 1, codes = 1;
  for (const auto& s : stacks) {
    if (s.ndim() != 3 || s.shape(0) != stacks[0].shape(0))
      throw nb::value_error("mode_sums: factors of as many terms are needed in every mode");
    factors.push_back({int(s.shape(0)), int(s.shape(1)), int(s.shape(2)), s.data()});
    features *= s.shape(1);
    codes *= s.shape(2);
  }
  if (mode >= factors.size() || xy.size() != codes * features)
    throw nb::value_error("mode_sums: the moments do not fit the factors");
  const double* xx = pointer<const double>(triangle, codes * (codes + 1) / 2, "triangle");
  const size_t m = factors[mode].m, rows = size_t(factors[mode].terms) * factors[mode].n;
  std::vector<double> p(xx ? rows * rows : 0), c(rows * m);
  {
    nb::gil_scoped_release nogil;
    kronlearn::mode_sums(kronlearn::instruction_set(instruction_set), factors, int(mode), xx,
                         xy.data(), p.data(), c.data());
  }
  const nb::object none = nb::none();
  return nb::make_tuple(xx ? own_array(std::move(p), {rows, rows}) : none,
                        own_array(std::move(c), {rows, m}));
}

// The packed S_xx of codes x times `scale`.
nb::object scaled_triangle(Array<const double> triangle, Array<const double> scale) {
  const size_t n = scale.size();
  if (triangle.size() != n * (n + 1) / 2)
    throw nb::value_error("scaled_triangle: a packed triangle has n (n + 1) / 2 entries");
  kronlearn::Numbers<double> scaled(triangle.data(), triangle.data() + triangle.size());
  kronlearn::scale_triangle(scaled.data(), scale.data(), int64_t(n));
  return own_array(std::move(scaled), {triangle.size()});
}

nb::tuple unit_columns(Array<const double> columns, Array<const double> fallback) {
  if (columns.ndim() != 2 || fallback.size() != columns.size())
    throw nb::value_error("unit_columns: a matrix and one of the same shape are needed");
  const size_t rows = columns.shape(0), n = columns.shape(1);
  std::vector<double> scaled(columns.data(), columns.data() + columns.size()), scale(n);
  kronlearn::scale_columns(scaled.data(), fallback.data(), int64_t(rows), int64_t(n), scale.data());
  return nb::make_tuple(own_array(std::move(scaled), {rows, n}), own_array(std::move(scale), {n}));
}

template <class T>
void sweep_atoms(Array<const T> samples, Array<const int32_t> indptr, Array<const int32_t> indices,
                 Array<T> data, Array<double> atoms, const std::string& instruction_set) {
  if (indptr.size() < 1 || atoms.ndim() != 2)
    throw nb::value_error("indptr has no entries, or atoms is no matrix");
  const size_t count = indptr.size() - 1, n_atoms = atoms.shape(0), features = atoms.shape(1);
  if (samples.size() != count * features) throw nb::value_error("samples do not fit the atoms");
  const size_t total = indptr.data()[count];
  if (indptr.data()[0] != 0 || indices.size() != total || data.size() != total)
    throw nb::value_error("codes do not fit together");
  const kronlearn::AtomSweep<T> sweep{&kronlearn::instruction_set(instruction_set),
                                      int64_t(count),
                                      int(features),
                                      int(n_atoms),
                                      samples.data(),
                                      indptr.data(),
                                      indices.data(),
                                      data.data(),
                                      atoms.data()};
  nb::gil_scoped_release nogil;
  kronlearn::run(sweep);
}

template <class T, class Index>
void bind_compress(nb::module_& m) {
  m.def("compress", &compress<T, Index>, "index"_a, "value"_a.noconvert(), "nonzeros"_a, "starts"_a,
        "indices"_a.noconvert(), "data"_a.noconvert(), "threads"_a = 1);
}

template <class T>
void bind(nb::module_& m, const char* name) {
  nb::class_<kronlearn::Dictionary<T>>(m, name)
      .def("__init__",
           [](kronlearn::Dictionary<T>* self, const std::vector<Array<const double>>& factors) {
             new (self) kronlearn::Dictionary<T>(copy_factors(factors));
           })
      // What is written to must be used as it is, never as a converted copy.
      .def("run", &run_pass<T>, "feed"_a, "count"_a, "chunk"_a, "method"_a, "width"_a, "tree"_a,
           nb::kw_only(), "sums"_a = "none", "mode"_a = -1, "weights"_a.none() = nb::none(),
           "tol"_a = T(-1), "tols"_a.none() = nb::none(), "given"_a = false, "first"_a = 0,
           "n_worst"_a = 0, "index"_a.noconvert().none() = nb::none(),
           "value"_a.noconvert().none() = nb::none(), "nonzeros"_a.noconvert().none() = nb::none(),
           "threads"_a = 1, "block"_a = 4096, "file"_a = -1, "file_offset"_a = 0,
           "instruction_set"_a = "");
  bind_compress<T, int32_t>(m);
  bind_compress<T, int64_t>(m);
  m.def("sweep_atoms", &sweep_atoms<T>, "samples"_a.noconvert(), "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "data"_a.noconvert(), "atoms"_a.noconvert(),
        "instruction_set"_a = "");
}

}  // namespace

NB_MODULE(_native, m) {
  // Threads that live until the process ends may hold dictionaries.
  nb::set_leak_warnings(false);
  nb::class_<kronlearn::SumTree>(m, "SumTree")
      .def(nb::init<size_t, int64_t>(), "size"_a, "blocks"_a)
      .def("add", &add_to_tree, "level"_a, "index"_a, "sums"_a)
      .def("nodes", &tree_nodes)
      .def("total",
           [](const kronlearn::SumTree& tree) { return own_array(tree.total(), {tree.size()}); });
  bind<float>(m, "DictionaryFloat32");
  bind<double>(m, "DictionaryFloat64");
  m.def("code_image", &code_image, "dictionary"_a, "image"_a, "numerator"_a.noconvert(),
        "denominator"_a.noconvert(), "axes"_a, "method"_a, "width"_a, "tol"_a,
        "known"_a.none() = nb::none(), "favour_sparse"_a = true, "threads"_a = 1,
        "progress"_a.none() = nb::none(), "instruction_set"_a = "");
  m.def("filter_groups", &filter_groups, "image"_a, "guide"_a.none(), "matched"_a,
        "numerator"_a.noconvert(), "denominator"_a.noconvert(), "axes"_a, "group"_a, "taper"_a,
        "noise"_a, "threads"_a = 1, "progress"_a.none() = nb::none(), "instruction_set"_a = "");
  m.def("code_convolutional", &code_convolutional, "residual"_a.noconvert(), "weights"_a.none(),
        "filters"_a, "stages"_a, "codes"_a, "penalty"_a, "tolerance"_a, "max_rounds"_a,
        "threads"_a = 1, "progress"_a.none() = nb::none(), "instruction_set"_a = "");
  m.def("synthesize_convolutional", &synthesize_convolutional, "image"_a.noconvert(), "filters"_a,
        "stages"_a, "codes"_a, "threads"_a = 1, "instruction_set"_a = "");
  m.def("correlate_codes", &correlate_codes, "image"_a, "filters"_a, "stages"_a, "codes"_a,
        "sums"_a.noconvert(), "threads"_a = 1, "instruction_set"_a = "");
  m.def("symmetric", &symmetric, "packed"_a, "n"_a);
  m.def("mode_sums", &mode_sums, "stacks"_a, "mode"_a, "triangle"_a.none(), "xy"_a,
        "instruction_set"_a = "");
  m.def("scaled_triangle", &scaled_triangle, "triangle"_a, "scale"_a);
  m.def("unit_columns", &unit_columns, "columns"_a, "fallback"_a);
  m.def("instruction_sets", &kronlearn::instruction_sets);
  m.def("end_passes", [] {
    nb::gil_scoped_release nogil;
    kronlearn::RunningPass::stop_all();
  });
  nb::module_::import_("atexit").attr("register")(m.attr("end_passes"));
}
