/// \file
/// The safetensors format: 8 bytes with the length of a JSON header (little-endian), the header
/// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}},
/// then the tensors' bytes without gaps (huggingface/safetensors, README "Format").
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "mapped_file.h"

namespace foresail::runtime {

enum class StoredType { F32, F16, Bf16 };

struct StoredTensor {
  StoredType type = StoredType::F32;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< in bytes of the file
  std::int64_t elements() const;
};

/// A file that is read. Checked whole when it is opened: every tensor lies in the file, none
/// overlaps another, none is missing.
class Safetensors {
 public:
  /// Throws Error{NotFound}, Error{Io}, or Error{InvalidInput} with path and tensor.
  explicit Safetensors(const std::filesystem::path& path);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::filesystem::path& path() const { return file_.path(); }
  /// Elements [first, first + into.size()) of a tensor of this file, as fp32.
  void read(const StoredTensor& tensor, std::int64_t first, std::span<float> into) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;
  void read_tensor(const std::string& name, const std::string& header, std::int64_t data_start);
  void check_layout(std::int64_t data_start) const;

  MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

/// The head of a file with these fp32 tensors one behind the other, and where each begins in it.
struct SafetensorsHead {
  std::string bytes;
  std::map<std::string, StoredTensor> tensors;
  std::int64_t file_bytes = 0;  ///< of the whole file
};
SafetensorsHead make_head(
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& tensors);

}  // namespace foresail::runtime
