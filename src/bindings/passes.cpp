// Dictionaries, passes over samples, and trees of sums.
#include "bindings.hpp"

#include <algorithm>

#include "pass.hpp"

namespace bindings {
namespace {

std::vector<kronlearn::Factor> copy_factors(const std::vector<Array<const double>>& factors) {
  std::vector<kronlearn::Factor> copies;
  for (const auto& f : factors) {
    if (f.ndim() != 2) throw nb::value_error("a factor must be a matrix");
    copies.push_back({int(f.shape(0)), int(f.shape(1)), {f.data(), f.data() + f.size()}});
  }
  return copies;
}

kronlearn::Sums sums_named(const std::string& name) {
  if (name == "none") return kronlearn::Sums::none;
  if (name == "full") return kronlearn::Sums::full;
  if (name == "xy") return kronlearn::Sums::xy;
  if (name == "mode") return kronlearn::Sums::mode;
  if (name == "mode-xy") return kronlearn::Sums::mode_xy;
  throw nb::value_error(("unknown sums " + name).c_str());
}

// The levels (k), indices (k) and sums (k, size) of the nodes of a tree.
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

// Gets chunks of samples from feed.get(number), and releases them by feed.done(number).
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
  const bool for_one_mode = pass.sums >= kronlearn::Sums::mode;
  if (for_one_mode && (pass.mode < 0 || pass.mode >= pass.dictionary->n_modes()))
    throw nb::value_error("no such mode");
  if (pass.tree->size() != kronlearn::sums_size(*pass.dictionary, pass.sums, pass.mode))
    throw nb::value_error("the tree holds sums of another size");
}

// The first sample that is not finite, or −1; then ‖y − Dx‖² (k) and the numbers (k) of the worst samples.
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
  kronlearn::PassResult result;
  run_interruptibly(pass, nb::none(), [&] {
    result = kronlearn::run(pass);
    return !result.cancelled;
  });
  return as_tuple(result);
}

template <class T>
void bind_dictionary(nb::module_& m, const char* name) {
  nb::class_<kronlearn::Dictionary<T>>(m, name)
      .def("__init__",
           [](kronlearn::Dictionary<T>* self, const std::vector<Array<const double>>& factors) {
             new (self) kronlearn::Dictionary<T>(copy_factors(factors));
           })
      // noconvert() where arrays are written to: a converted copy would be lost.
      .def("run", &run_pass<T>, "feed"_a, "count"_a, "chunk"_a, "method"_a, "width"_a, "tree"_a,
           nb::kw_only(), "sums"_a = "none", "mode"_a = -1, "weights"_a.none() = nb::none(),
           "tol"_a = T(-1), "tols"_a.none() = nb::none(), "given"_a = false, "first"_a = 0,
           "n_worst"_a = 0, "index"_a.noconvert().none() = nb::none(),
           "value"_a.noconvert().none() = nb::none(), "nonzeros"_a.noconvert().none() = nb::none(),
           "threads"_a = 1, "block"_a = 4096, "file"_a = -1, "file_offset"_a = 0,
           "instruction_set"_a = "");
}

}  // namespace

void bind_passes(nb::module_& m) {
  nb::class_<kronlearn::SumTree>(m, "SumTree")
      .def(nb::init<size_t, int64_t>(), "size"_a, "blocks"_a)
      .def("add", &add_to_tree, "level"_a, "index"_a, "sums"_a)
      .def("nodes", &tree_nodes)
      .def("total",
           [](const kronlearn::SumTree& tree) { return own_array(tree.total(), {tree.size()}); });
  bind_dictionary<float>(m, "DictionaryFloat32");
  bind_dictionary<double>(m, "DictionaryFloat64");
}

}  // namespace bindings
