/// \file
/// A shared library with NCCL's symbols for tests without GPUs: ranks are threads of one process,
/// and what is moved is host memory. Its calls return at once, as those of non-blocking
/// communicators do; an operation is done when all ranks it needs have issued theirs. Ranks whose
/// operations do not match never get done, as with NCCL. It keeps every handle, so that use of a
/// dead one is seen, and writes down each misuse.
#pragma once

#include <cstdint>
#include <string>

namespace foresail::testing {

/// What goes wrong, and how long things take. Ranks are those of the whole job.
struct NcclStubFault {
  int init_polls = 0;  ///< that find a communicator in progress after all ranks are there
  int call_polls = 0;  ///< the same after every operation
  /// From its operation number `error_after` (0: the first) on, this rank has a system error and
  /// the others of its group a remote error.
  int error_rank = -1;
  int error_after = 0;
  /// This rank's operation number `swallow_after` takes no part: it is never done.
  int swallow_rank = -1;
  int swallow_after = 0;
  int refused_init_rank = -1;  ///< whose init call is refused at once
};

struct NcclStubCounts {
  int ids = 0;          ///< given out
  int ids_of_init = 0;  ///< most that one init took
  int inits = 0;        ///< calls, one per rank
  int splits = 0;       ///< communicators made by split, one per member
  int aborts = 0, finalizes = 0, destroys = 0;
  int live = 0;           ///< communicators neither aborted nor destroyed
  int registered = 0;     ///< buffers now
  int registrations = 0;  ///< so far
  int memory_blocks = 0;  ///< of ncclMemAlloc now
};

/// The configuration that the last communicator of this name was made with.
struct NcclStubConfig {
  int blocking = 0, cga_cluster_size = 0, min_ctas = 0, max_ctas = 0, traffic_class = 0;
  char net_name[64] = {};
};

}  // namespace foresail::testing

extern "C" {
/// Forgets everything, and does what `fault` says from now on.
void nccl_stub_reset(const foresail::testing::NcclStubFault* fault);
void nccl_stub_counts(foresail::testing::NcclStubCounts* counts);
/// One line for each misuse since the reset. The text is valid until the next call.
const char* nccl_stub_misuse();
/// False if there was none of that name.
bool nccl_stub_config(const char* name, foresail::testing::NcclStubConfig* config);
/// Whether all operations queued on this stream are done.
bool nccl_stub_stream_is_done(void* stream);
}
