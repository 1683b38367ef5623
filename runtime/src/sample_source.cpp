#include "foresail/runtime/sample_source.h"

#include "foresail/base/error.h"
#include "foresail/runtime/text_data.h"
#include "foresail/runtime/token_data.h"

namespace foresail::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kByteValues = 256;

bool is_token_file(const fs::path& path) {
  return path.extension() == ".bin" || path.extension() == ".idx";
}

std::unique_ptr<SampleSource> open_text(const SampleOptions& options) {
  if (!options.split.empty()) {
    throw Error(ErrorCode::InvalidInput,
                options.path.string() + ": text has no documents that training.data could split");
  }
  if (options.vocab < kByteValues) {
    throw Error(ErrorCode::InvalidInput, options.path.string() +
                                             ": the tokens of text are its bytes, which need "
                                             "model.vocab 256 or more, not " +
                                             std::to_string(options.vocab));
  }
  return std::make_unique<TextData>(TextData::Options{
      .path = options.path, .sequence_length = options.sequence_length, .seed = options.seed});
}

}  // namespace

void SampleSource::load(int, std::span<const std::int64_t> indices,
                        std::span<std::int32_t> tokens) {
  FORESAIL_EXPECT(!indices.empty());
  FORESAIL_EXPECT(tokens.size() % indices.size() == 0);
  const std::size_t length = tokens.size() / indices.size();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    read(indices[i], tokens.subspan(i * length, length));
  }
}

std::unique_ptr<SampleSource> open_samples(const SampleOptions& options) {
  SampleOptions tokens = options;
  if (is_token_file(options.path)) {
    tokens.path.replace_extension();
  } else if (fs::exists(options.path)) {
    return open_text(options);
  }
  if (!is_token_file(options.path) && !fs::exists(options.path.string() + ".idx")) {
    throw Error(ErrorCode::NotFound, options.path.string() + ": no such file or folder, and no " +
                                         options.path.filename().string() + ".idx with tokens");
  }
  return std::make_unique<TokenData>(tokens);
}

}  // namespace foresail::runtime
