#include "foresail/base/digest.h"

#include <openssl/evp.h>

#include <array>
#include <memory>

#include "foresail/base/error.h"

namespace foresail {

std::string sha256(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned int size = 0;
  FORESAIL_EXPECT(
      EVP_Digest(bytes.data(), bytes.size(), hash.data(), &size, EVP_sha256(), nullptr) == 1);
  FORESAIL_EXPECT(size == 32);
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(64);
  for (unsigned int i = 0; i < size; ++i) {
    hex += kDigits[hash[i] >> 4u];
    hex += kDigits[hash[i] & 15u];
  }
  return hex;
}

}  // namespace foresail
