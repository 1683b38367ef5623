/// \file
/// The two ways a run can go wrong: the world (Error) or us (EXPECT).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace foresail {

enum class ErrorCode { InvalidInput, NotFound, Unsupported, Device, Io };

/// Input, file, or device did not allow the request. Message: lower case, no
/// final period, names the culprit ("scenario.yaml:12: rank 9 of 8").
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// A bug in this project. Never caught inside the library.
class ContractViolation : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void contract_failed(std::string_view condition, const char* file, int line);

}  // namespace foresail

/// Always on, in every build: a wrong simulation is worse than a slow one.
#define FORESAIL_EXPECT(condition)                                 \
  do {                                                             \
    if (!(condition)) [[unlikely]]                                 \
      ::foresail::contract_failed(#condition, __FILE__, __LINE__); \
  } while (false)
