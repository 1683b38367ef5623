/// \file
/// Who this process is: environment variables of torchrun (also set by our own launcher) or Slurm.
#pragma once

#include <string>

#include "foresail/runtime/gloo.h"
#include "foresail/runtime/store.h"

namespace foresail::cli {

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the ranks of this host: LOCAL_RANK, else SLURM_LOCALID, else 0
  std::string master_host = "127.0.0.1";
  int master_port = 29500;
  /// A launcher serves the store (torchrun's agent); else rank 0 does.
  bool is_store_served = false;
  /// What launcher and batch system call this start of the job; empty if they do not say.
  std::string job;
};

/// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; else SLURM_PROCID, SLURM_NTASKS and the first host
/// of SLURM_STEP_NODELIST (or MASTER_ADDR) with a port from SLURM_JOB_ID (or MASTER_PORT); else a
/// single process. Throws Error{InvalidInput} naming the variable that is missing or no number.
RankEnvironment read_environment();

/// The address on which peers reach this process: FORESAIL_INTERFACE or GLOO_SOCKET_IFNAME if set,
/// loopback if the store is there, else this host's name.
runtime::GlooEndpoint::Options endpoint_options(const std::string& store_host);

/// "n[0-3,7]" or "alpha,beta" -> "n0", "alpha".
std::string first_host(const std::string& node_list);

/// Freed memory stays with the process: tensors of one step are those of the next, and fetching
/// them from the system each time costs as much as computing on them.
void keep_freed_memory();

/// A TCP port that is free on this host now.
int free_port();

}  // namespace foresail::cli
