#include "dropout.h"

#include <algorithm>
#include <bit>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "number_format.h"

namespace foresail::runtime {
namespace {

constexpr std::int64_t kWord = 0xFFFFFFFF;
constexpr int kLayerShift = 16, kSiteShift = 14;

std::int64_t word_of(const DropoutPlace& place) {
  FORESAIL_EXPECT(place.layer >= 0 && place.layer < (1 << (32 - kLayerShift)));
  return (std::int64_t{place.layer} << kLayerShift) |
         (static_cast<std::int64_t>(place.site) << kSiteShift);
}

at::Tensor count_up(std::int64_t first, std::int64_t count, const at::Tensor& like) {
  return at::arange(first, first + count, like.options());
}

/// One 32-bit word per element, in int64.
using Words = std::array<at::Tensor, 4>;

/// Product of a word and a multiplier: what its upper and its lower 32 bits are. The product wraps
/// at 64 bits, which loses nothing.
struct Product {
  at::Tensor high, low;
  Product(const at::Tensor& word, std::uint32_t multiplier) {
    const at::Tensor product = word * static_cast<std::int64_t>(multiplier);
    high = product.bitwise_right_shift(32).bitwise_and_(kWord);
    low = product.bitwise_and(kWord);
  }
};

Words philox_words(Words counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const Product p(counter[0], kPhiloxMultipliers[0]);
    const Product q(counter[2], kPhiloxMultipliers[1]);
    counter = {q.high.bitwise_xor(counter[1]).bitwise_xor_(std::int64_t{key[0]}), q.low,
               p.high.bitwise_xor(counter[3]).bitwise_xor_(std::int64_t{key[1]}), p.low};
    key = {key[0] + kPhiloxWeyl[0], key[1] + kPhiloxWeyl[1]};
  }
  return counter;
}

std::vector<std::int64_t> shape_of_rows(const DropoutRows& rows) {
  return at::infer_size(at::infer_size(rows.position.sizes(), rows.sample.sizes()),
                        rows.place.sizes());
}

/// `word` for every row, one behind the other.
at::Tensor by_row(const at::Tensor& word, const std::vector<std::int64_t>& shape) {
  return word.expand(shape).contiguous();
}

/// Writes one row; `scratch` is memory to work in.
void draw_row(PhiloxCounter counter, PhiloxKey key, const DropoutElements& elements,
              std::int64_t last, std::uint8_t* row, std::vector<std::uint8_t>& scratch) {
  for (const DropoutElements::Run& run : elements.runs()) {
    const std::int64_t count = std::min(run.count, last + 1 - run.first);
    if (count > 0) {
      const std::int64_t before = run.first % kPhiloxNumbers;
      counter[0] = static_cast<std::uint32_t>(run.first / kPhiloxNumbers);
      const auto size = static_cast<std::size_t>(before + count);
      if (before == 0) {
        philox_below(counter, key, kDropoutThreshold, {row, size});
      } else {
        scratch.resize(size);
        philox_below(counter, key, kDropoutThreshold, scratch);
        std::copy(scratch.begin() + before, scratch.end(), row);
      }
    }
    row += run.count;
  }
}

/// torch's masked_fill_ takes twenty times as long: this one is vectorised.
void drop_on_host(float* values, const bool* dropped, std::int64_t count) {
  static_assert(sizeof(bool) == 1 && sizeof(float) == sizeof(std::uint32_t));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto scaled = std::bit_cast<std::uint32_t>(values[i] * static_cast<float>(kDropoutScale));
    const auto all_if_it_stays = static_cast<std::uint32_t>(dropped[i]) - 1U;
    values[i] = std::bit_cast<float>(scaled & all_if_it_stays);
  }
}

}  // namespace

PhiloxKey dropout_key(std::uint64_t seed, int step) {
  const std::uint64_t bits = Rng(seed).stream("dropout", static_cast<std::uint64_t>(step)).next();
  return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
}

DropoutElements::DropoutElements(const at::Tensor& elements, at::Device device)
    : host_(elements.contiguous()), values_(host_.to(device)) {
  FORESAIL_EXPECT(host_.device().is_cpu() && host_.scalar_type() == at::kLong);
  const std::int64_t* values = host_.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < size(); ++i) {
    if (runs_.empty() || values[i] != runs_.back().first + runs_.back().count) {
      runs_.push_back({values[i], 0});
    }
    ++runs_.back().count;
  }
  has_whole_counters_ = std::ranges::all_of(runs_, [](const Run& run) {
    return run.first % kPhiloxNumbers == 0 && run.count % kPhiloxNumbers == 0;
  });
}

DropoutElements DropoutElements::narrow(std::int64_t first, std::int64_t count) const {
  DropoutElements part(host_.narrow(0, first, count), at::kCPU);
  part.values_ = values_.narrow(0, first, count);
  return part;
}

at::Tensor draw_dropped(PhiloxKey key, const DropoutRows& rows, const DropoutElements& elements) {
  if (!rows.position.device().is_cpu()) return draw_dropped_by_operators(key, rows, elements);
  std::vector<std::int64_t> shape = shape_of_rows(rows);
  const at::Tensor position = by_row(rows.position, shape);
  const at::Tensor sample = by_row(rows.sample, shape);
  const at::Tensor place = by_row(rows.place, shape);
  const std::int64_t* words[] = {position.data_ptr<std::int64_t>(), sample.data_ptr<std::int64_t>(),
                                 place.data_ptr<std::int64_t>()};
  shape.push_back(elements.size());
  const at::TensorOptions options = at::TensorOptions().dtype(at::kBool);
  const at::Tensor dropped = rows.is_causal ? at::zeros(shape, options) : at::empty(shape, options);
  auto* row = reinterpret_cast<std::uint8_t*>(dropped.data_ptr<bool>());
  static_assert(sizeof(bool) == 1);
  std::vector<std::uint8_t> scratch;
  for (std::int64_t i = 0; i < position.numel(); ++i) {
    const PhiloxCounter counter{0, static_cast<std::uint32_t>(words[0][i]),
                                static_cast<std::uint32_t>(words[1][i]),
                                static_cast<std::uint32_t>(words[2][i])};
    draw_row(counter, key, elements, rows.is_causal ? words[0][i] : kWord, row, scratch);
    row += elements.size();
  }
  return dropped;
}

at::Tensor draw_dropped_by_operators(PhiloxKey key, const DropoutRows& rows,
                                     const DropoutElements& elements) {
  const at::Tensor& values = elements.values();
  const bool is_whole = elements.has_whole_counters();
  const at::Tensor first = (is_whole ? values.slice(0, 0, values.size(0), kPhiloxNumbers) : values)
                               .bitwise_right_shift(2);
  static_assert(kPhiloxNumbers == 4);
  Words numbers = philox_words(
      {first, rows.position.unsqueeze(-1), rows.sample.unsqueeze(-1), rows.place.unsqueeze(-1)},
      key);
  at::Tensor dropped =
      at::stack(at::TensorList(numbers), -1).lt(static_cast<std::int64_t>(kDropoutThreshold));
  if (is_whole) {
    dropped = dropped.flatten(-2);
  } else {
    std::vector<std::int64_t> shape = dropped.sizes().vec();
    shape.back() = 1;
    const at::Tensor which = values.bitwise_and(kPhiloxNumbers - 1).unsqueeze(-1).expand(shape);
    dropped = dropped.gather(-1, which).squeeze(-1);
  }
  if (rows.is_causal) dropped.logical_and_(values.le(rows.position.unsqueeze(-1)));
  return dropped;
}

void drop(at::Tensor& values, const at::Tensor& dropped) {
  FORESAIL_EXPECT(values.sizes() == dropped.sizes());
  FORESAIL_EXPECT(values.scalar_type() == at::kFloat);
  const bool is_plain = values.is_contiguous() && dropped.is_contiguous();
  if (values.device().is_cpu() && is_plain) {
    drop_on_host(values.data_ptr<float>(), dropped.data_ptr<bool>(), values.numel());
  } else {
    values.masked_fill_(dropped, 0).mul_(kDropoutScale);
  }
}

at::Tensor without_dropped(const at::Tensor& values, const at::Tensor& dropped) {
  at::Tensor left = values.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  drop(left, dropped);
  return rounded(left, values);
}

at::Tensor draw_hidden(const DropoutNow& now, const DropoutPlace& place,
                       const at::Tensor& positions, std::int64_t samples,
                       const DropoutElements& channels) {
  const DropoutRows rows{.position = positions.unsqueeze(1),
                         .sample = count_up(now.first_sample, samples, positions),
                         .place = at::full({1}, word_of(place), positions.options())};
  return draw_dropped(now.key, rows, channels).flatten(0, 1);
}

at::Tensor AttentionDropout::draw() const {
  return draw({0, pairs->queries.size(0)}, {0, pairs->keys.size()});
}

at::Tensor AttentionDropout::draw(const Range& queries, const Range& keys) const {
  FORESAIL_EXPECT(first_head + heads <= (1 << kSiteShift));
  const at::Tensor positions = pairs->queries.narrow(0, queries.first, queries.count);
  const std::int64_t place = word_of({DropoutSite::Attention, layer}) + first_head;
  const DropoutRows rows{.position = positions,
                         .sample = count_up(now.first_sample, samples, positions).view({-1, 1, 1}),
                         .place = count_up(place, heads, positions).view({-1, 1}),
                         .is_causal = true};
  return draw_dropped(now.key, rows, pairs->keys.narrow(keys.first, keys.count));
}

}  // namespace foresail::runtime
