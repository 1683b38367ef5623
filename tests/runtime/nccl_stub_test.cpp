// That the stub sees what the tests of the communicator rely on it to see.
#include <gtest/gtest.h>

#include "nccl_api.h"
#include "rank_threads.h"

namespace foresail::testing {
namespace {

using runtime::NcclApi;
using runtime::NcclComm;
using runtime::NcclConfig;
using runtime::NcclResult;
using runtime::NcclUniqueId;

/// A communicator of one rank, straight from the library.
class AloneInNccl : public ::testing::Test {
 protected:
  AloneInNccl() : api_(*runtime::load_nccl(NcclStub::path())) {
    NcclUniqueId id{};
    NcclConfig config;
    config.blocking = 0;
    EXPECT_EQ(api_.get_unique_id(&id), NcclResult::Success);
    EXPECT_EQ(api_.init_rank_config(&comm_, 1, id, 0, &config), NcclResult::InProgress);
  }
  NcclResult state() const {
    NcclResult state = NcclResult::Success;
    EXPECT_EQ(api_.get_async_error(comm_, &state), NcclResult::Success);
    return state;
  }

  NcclStub stub_{{.call_polls = 1}};
  NcclApi api_;
  NcclComm comm_ = nullptr;
  float value_ = 3;
  NcclResult all_reduce() {
    return api_.all_reduce(&value_, &value_, 1, runtime::NcclType::Float32,
                           runtime::NcclReduction::Sum, comm_, nullptr);
  }
};

TEST_F(AloneInNccl, TheStubSeesASecondAbortAndUseAfterIt) {
  EXPECT_EQ(api_.abort(comm_), NcclResult::Success);
  EXPECT_EQ(stub_.misuse(), "");
  EXPECT_EQ(api_.abort(comm_), NcclResult::InvalidUsage);
  EXPECT_EQ(all_reduce(), NcclResult::InvalidUsage);
  EXPECT_EQ(stub_.misuse(), "ncclCommAbort: use after abort\nncclAllReduce: use after abort\n");
}

TEST_F(AloneInNccl, TheStubSeesADestroyWithoutFinalizeAndASecondOne) {
  EXPECT_EQ(api_.destroy(comm_), NcclResult::InvalidUsage);
  EXPECT_EQ(api_.finalize(comm_), NcclResult::InProgress);
  EXPECT_EQ(state(), NcclResult::InProgress);
  EXPECT_EQ(state(), NcclResult::Success);
  EXPECT_EQ(api_.destroy(comm_), NcclResult::Success);
  EXPECT_EQ(api_.destroy(comm_), NcclResult::InvalidUsage);
  EXPECT_EQ(stub_.misuse(), "ncclCommDestroy: not finalized\nncclCommDestroy: use after destroy\n");
}

TEST_F(AloneInNccl, TheStubSeesACallWhileTheLastIsInProgress) {
  EXPECT_EQ(all_reduce(), NcclResult::InProgress);
  EXPECT_EQ(all_reduce(), NcclResult::InvalidUsage);
  EXPECT_EQ(stub_.misuse(), "ncclAllReduce: call while in progress\n");
}

TEST_F(AloneInNccl, TheStubSeesBuffersThatAreLeftOrFreedTwice) {
  void* memory = nullptr;
  void* handle = nullptr;
  EXPECT_EQ(api_.mem_alloc(&memory, 64), NcclResult::Success);
  EXPECT_EQ(api_.register_buffer(comm_, memory, 64, &handle), NcclResult::Success);
  EXPECT_EQ(api_.finalize(comm_), NcclResult::InProgress);
  EXPECT_EQ(api_.mem_free(memory), NcclResult::Success);
  EXPECT_EQ(api_.mem_free(memory), NcclResult::InvalidUsage);
  EXPECT_EQ(stub_.misuse(),
            "ncclCommFinalize: buffers are still registered\n"
            "ncclMemFree: not allocated, or freed\n");
}

}  // namespace
}  // namespace foresail::testing
