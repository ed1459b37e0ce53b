// Convolutional sparse coding.
#include "bindings.hpp"

#include <tuple>

#include "convolutional/convolution.hpp"

namespace bindings {
namespace {

// (axis, groups, outputs, shared, numbers), as kronlearn::FilterStage.
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

// (positions, atoms, values), as kronlearn::ConvolutionalCodes.
using Codes = std::tuple<Array<const int64_t>, Array<const int32_t>, Array<const float>>;

// Sets what all three functions have in common, and returns the codes. `image` has as many axes as a filter.
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
  run_interruptibly(coding, progress, [&] { return kronlearn::run(coding); });
  const size_t count = coding.codes.values.size();
  return nb::make_tuple(own_array(std::move(coding.codes.positions), {count}),
                        own_array(std::move(coding.codes.atoms), {count}),
                        own_array(std::move(coding.codes.values), {count}), coding.violation);
}

void synthesize_convolutional(Array<float> image, Array<const float> filters, const Stages& stages,
                              const Codes& codes, int threads, const std::string& instruction_set) {
  const kronlearn::Filters made = make_filters(filters, stages);
  kronlearn::Convolution convolution{};
  const auto coefficients =
      prepare(convolution, made, filters, image, codes, threads, instruction_set);
  run_interruptibly(convolution, nb::none(),
                    [&] { return kronlearn::synthesize(convolution, coefficients, image.data()); });
}

void correlate_codes(Array<const float> image, Array<const float> filters, const Stages& stages,
                     const Codes& codes, Array<double> sums, int threads,
                     const std::string& instruction_set) {
  const kronlearn::Filters made = make_filters(filters, stages);
  kronlearn::Convolution convolution{};
  const auto coefficients =
      prepare(convolution, made, filters, image, codes, threads, instruction_set);
  if (sums.size() != filters.size()) throw nb::value_error("sums do not fit the filters");
  run_interruptibly(convolution, nb::none(), [&] {
    return kronlearn::correlate_codes(convolution, coefficients, image.data(), sums.data());
  });
}

}  // namespace

void bind_convolutions(nb::module_& m) {
  m.def("code_convolutional", &code_convolutional, "residual"_a.noconvert(), "weights"_a.none(),
        "filters"_a, "stages"_a, "codes"_a, "penalty"_a, "tolerance"_a, "max_rounds"_a,
        "threads"_a = 1, "progress"_a.none() = nb::none(), "instruction_set"_a = "");
  m.def("synthesize_convolutional", &synthesize_convolutional, "image"_a.noconvert(), "filters"_a,
        "stages"_a, "codes"_a, "threads"_a = 1, "instruction_set"_a = "");
  m.def("correlate_codes", &correlate_codes, "image"_a, "filters"_a, "stages"_a, "codes"_a,
        "sums"_a.noconvert(), "threads"_a = 1, "instruction_set"_a = "");
}

}  // namespace bindings
