// Passes over the overlapping patches of images.
#include "bindings.hpp"

#include <limits>
#include <tuple>

#include "images/image.hpp"

namespace bindings {
namespace {

// For every group a matrix with this many rows and columns is inverted.
constexpr int kMostInGroup = 1024;

// (size, patch, stride, window) for each axis of an image, as kronlearn::Axis.
using Axes = std::vector<std::tuple<int64_t, int, int, int>>;

// Sets what all passes over images have in common.
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
  run_interruptibly(pass, progress, [&] { return kronlearn::run(pass); });
}

void filter_groups(Array<const float> image, Optional<const float> guide,
                   Array<const float> matched, Array<float> numerator, Array<float> denominator,
                   const Axes& axes, int group, Array<const float> taper, Array<const float> noise,
                   bool over_pixels, Optional<int32_t> matches, int threads, nb::object progress,
                   const std::string& instruction_set) {
  kronlearn::GroupFiltering pass{};
  prepare(pass, axes, image, numerator, denominator, threads, instruction_set);
  const size_t pixels = image.size() / size_t(pass.planes);
  if (group < 1 || group > kMostInGroup || int64_t(taper.size()) != features_of(pass) ||
      matched.size() == 0 || matched.size() % pixels ||
      (noise.size() != 1 && noise.size() != image.size()) || (over_pixels && !guide))
    throw nb::value_error("groups do not fit the image");
  pass.group = group;
  pass.guide = pointer<const float>(guide, image.size(), "guide");
  pass.over_pixels = over_pixels;
  pass.matched_planes = int(matched.size() / pixels);
  pass.matched = matched.data();
  pass.noise = noise.data();
  pass.same_noise = noise.size() == 1;
  pass.taper = taper.data();
  if (matches && pixels > size_t(std::numeric_limits<int32_t>::max()))
    throw nb::value_error("matches of 2^31 or more pixels are not kept");
  const size_t patches = size_t(kronlearn::PatchGrid(pass.axes).patches());
  pass.matches = pointer<int32_t>(matches, patches * size_t(group), "matches");
  run_interruptibly(pass, progress, [&] { return kronlearn::run(pass); });
}

}  // namespace

void bind_images(nb::module_& m) {
  m.def("code_image", &code_image, "dictionary"_a, "image"_a, "numerator"_a.noconvert(),
        "denominator"_a.noconvert(), "axes"_a, "method"_a, "width"_a, "tol"_a,
        "known"_a.none() = nb::none(), "favour_sparse"_a = true, "threads"_a = 1,
        "progress"_a.none() = nb::none(), "instruction_set"_a = "");
  m.def("filter_groups", &filter_groups, "image"_a, "guide"_a.none(), "matched"_a,
        "numerator"_a.noconvert(), "denominator"_a.noconvert(), "axes"_a, "group"_a, "taper"_a,
        "noise"_a, "over_pixels"_a = false, "matches"_a.noconvert().none() = nb::none(),
        "threads"_a = 1, "progress"_a.none() = nb::none(), "instruction_set"_a = "");
}

}  // namespace bindings
