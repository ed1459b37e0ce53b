// Conversions of codes and moments, and the parts of dictionary updates that are native.
#include "bindings.hpp"

#include "kronecker/columns.hpp"
#include "moments/atom_sweep.hpp"
#include "moments/mode_sums.hpp"
#include "moments/packing.hpp"
#include "runtime/workspace.hpp"

namespace bindings {
namespace {

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

// P (terms · n, terms · n), or None if there is no triangle of S_xx, and Cᵀ (terms · n, m) of a mode.
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

// The packed S_xx of the codes scale ∘ x.
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
void bind_sweep(nb::module_& m) {
  m.def("sweep_atoms", &sweep_atoms<T>, "samples"_a.noconvert(), "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "data"_a.noconvert(), "atoms"_a.noconvert(),
        "instruction_set"_a = "");
}

}  // namespace

void bind_moments(nb::module_& m) {
  bind_compress<float, int32_t>(m);
  bind_compress<float, int64_t>(m);
  bind_compress<double, int32_t>(m);
  bind_compress<double, int64_t>(m);
  bind_sweep<float>(m);
  bind_sweep<double>(m);
  m.def("symmetric", &symmetric, "packed"_a, "n"_a);
  m.def("mode_sums", &mode_sums, "stacks"_a, "mode"_a, "triangle"_a.none(), "xy"_a,
        "instruction_set"_a = "");
  m.def("scaled_triangle", &scaled_triangle, "triangle"_a, "scale"_a);
  m.def("unit_columns", &unit_columns, "columns"_a, "fallback"_a);
}

}  // namespace bindings
