#include "safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kHeaderMax = 100'000'000;  // the format's own bound
constexpr std::int64_t kElementsMax = std::int64_t{1} << 60;
constexpr std::size_t kHeaderAlignment = 8;
constexpr const char* kMetadata = "__metadata__";

std::int64_t size_of(StoredType type) {
  return type == StoredType::F32 ? 4 : 2;
}

float from_half(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  std::uint32_t exponent = half >> 10 & 0x1f;
  std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {  // zero and subnormal numbers: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign == 0 ? value : -value;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

template <class T>
T load(const unsigned char* from) {
  T value{};
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

std::int64_t StoredTensor::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

Safetensors::Safetensors(const std::filesystem::path& path) : file_(path) {
  const auto bytes = file_.bytes();
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size < kLengthBytes) fail(fmt::format("{} bytes are no safetensors file", size));
  const auto length = load<std::uint64_t>(bytes.data());
  const std::int64_t longest = std::min(kHeaderMax, size - kLengthBytes);
  if (length > static_cast<std::uint64_t>(longest)) {
    fail(fmt::format("a header of {} bytes, but the file has {}", length, size));
  }
  const auto data_start = kLengthBytes + static_cast<std::int64_t>(length);
  const std::string header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  const Document document = parse_json(header, path.string());
  if (!document.is_object()) fail("the header is no JSON object");
  for (const auto& [name, entry] : document.items()) {
    if (name != kMetadata) read_tensor(name, entry.dump(), data_start);
  }
  check_layout(data_start);
}

void Safetensors::fail(const std::string& what) const {
  throw Error(ErrorCode::InvalidInput, file_.path().string() + ": " + what);
}

void Safetensors::read_tensor(const std::string& name, const std::string& header,
                              std::int64_t data_start) {
  const Document entry = Document::parse(header);
  const auto are_counts = [](const Document& list) {
    return list.is_array() && std::ranges::all_of(list, [](const Document& item) {
             return item.is_number_unsigned() &&
                    item.get<std::uint64_t>() <= static_cast<std::uint64_t>(kElementsMax);
           });
  };
  const bool is_entry = entry.is_object() && entry.contains("dtype") &&
                        entry["dtype"].is_string() && entry.contains("shape") &&
                        are_counts(entry["shape"]) && entry.contains("data_offsets") &&
                        are_counts(entry["data_offsets"]) && entry["data_offsets"].size() == 2;
  if (!is_entry) fail(name + ": expected dtype, shape and two data_offsets");
  StoredTensor tensor;
  const std::string type = entry["dtype"];
  if (type == "F32") {
    tensor.type = StoredType::F32;
  } else if (type == "F16") {
    tensor.type = StoredType::F16;
  } else if (type == "BF16") {
    tensor.type = StoredType::Bf16;
  } else {
    fail(fmt::format("{}: dtype {} is not one of F32, F16, BF16", name, type));
  }
  std::int64_t count = 1;
  for (const Document& item : entry["shape"]) {
    const auto size = item.get<std::int64_t>();
    if (__builtin_mul_overflow(count, size, &count) || count > kElementsMax) {
      fail(name + ": a shape of more than 2^60 elements");
    }
    tensor.shape.push_back(size);
  }
  const auto begin = entry["data_offsets"][0].get<std::int64_t>();
  const auto end = entry["data_offsets"][1].get<std::int64_t>();
  const auto data_bytes = static_cast<std::int64_t>(file_.bytes().size()) - data_start;
  if (begin > end || end > data_bytes || end - begin != count * size_of(tensor.type)) {
    fail(fmt::format("{}: {} elements of {} are not bytes {} to {} of {}", name, count, type, begin,
                     end, data_bytes));
  }
  tensor.offset = data_start + begin;
  tensors_.emplace(name, std::move(tensor));
}

/// One behind the other, from the header to the end of the file.
void Safetensors::check_layout(std::int64_t data_start) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // begin, end
  for (const auto& [name, tensor] : tensors_) {
    ranges.emplace_back(tensor.offset, tensor.offset + tensor.elements() * size_of(tensor.type));
  }
  std::ranges::sort(ranges);
  std::int64_t place = data_start;
  for (const auto& [begin, end] : ranges) {
    if (begin != place) fail(fmt::format("a gap or an overlap of tensors at byte {}", begin));
    place = end;
  }
  if (place != static_cast<std::int64_t>(file_.bytes().size())) {
    fail(fmt::format("the tensors end at byte {} of {}", place, file_.bytes().size()));
  }
}

void Safetensors::read(const StoredTensor& tensor, std::int64_t first,
                       std::span<float> into) const {
  FORESAIL_EXPECT(first >= 0);
  FORESAIL_EXPECT(first + static_cast<std::int64_t>(into.size()) <= tensor.elements());
  const std::int64_t width = size_of(tensor.type);
  const unsigned char* from = file_.bytes().data() + tensor.offset + first * width;
  for (float& value : into) {
    switch (tensor.type) {
      case StoredType::F32:
        value = load<float>(from);
        break;
      case StoredType::F16:
        value = from_half(load<std::uint16_t>(from));
        break;
      case StoredType::Bf16:
        value = std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(from)} << 16);
        break;
    }
    from += width;
  }
}

SafetensorsHead make_head(
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& tensors) {
  SafetensorsHead head;
  Document header{{kMetadata, {{"format", "pt"}}}};
  std::int64_t place = 0;
  for (const auto& [name, shape] : tensors) {
    StoredTensor tensor{.type = StoredType::F32, .shape = shape, .offset = place};
    const std::int64_t end = place + tensor.elements() * size_of(tensor.type);
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {place, end}}};
    head.tensors.emplace(name, std::move(tensor));
    place = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  const auto length = static_cast<std::uint64_t>(text.size());
  head.bytes.resize(kLengthBytes);
  std::memcpy(head.bytes.data(), &length, kLengthBytes);
  head.bytes += text;
  for (auto& [name, tensor] : head.tensors) {
    tensor.offset += static_cast<std::int64_t>(head.bytes.size());
  }
  head.file_bytes = place + static_cast<std::int64_t>(head.bytes.size());
  return head;
}

}  // namespace foresail::runtime
