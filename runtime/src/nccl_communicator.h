/// \file
/// A Communicator over one NCCL connection.
#pragma once

#include <memory>

#include "foresail/runtime/nccl.h"
#include "nccl_connection.h"

namespace foresail::runtime {

/// As NCCL takes it. `name` and the strings of `options` must outlive the result.
NcclConfig make_nccl_config(const std::string& name, const NcclGroupOptions& options);

struct NcclMember {
  std::unique_ptr<NcclConnection> connection;
  int rank = 0;
  int size = 1;
  NcclGroupOptions options{};
  BufferRegistration registration = BufferRegistration::Off;
};
std::unique_ptr<Communicator> make_nccl_communicator(NcclMember member);

}  // namespace foresail::runtime
