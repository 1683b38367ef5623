// What runs on a CUDA device. Without one, every test skips and says why.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "device_attention.h"
#include "foresail/runtime/cuda_device.h"
#include "foresail/runtime/store.h"
#include "nccl_communicator.h"

namespace foresail::runtime {
namespace {

using std::chrono::seconds;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaSight sight = look_for_cuda();
    if (sight.devices == 0) GTEST_SKIP() << "no CUDA device: " << sight.reason;
    device_ = std::make_unique<CudaDevice>(0);
  }
  at::TensorOptions on_device() { return device_->make_token().options(); }
  void wait() {
    void* stream = device_->current();
    while (!device_->is_done(stream)) {
    }
  }

  std::unique_ptr<CudaDevice> device_;
};

/// Small integers, whose products and sums are exact in fp32.
at::Tensor integers(std::int64_t rows, std::int64_t columns) {
  return at::arange(rows * columns, at::kFloat).remainder_(7).sub_(3).view({rows, columns});
}

TEST_F(Gpu, MatrixProductsOfSmallIntegersAreThoseOfTheCpu) {
  const at::Tensor a = integers(257, 129);
  const at::Tensor b = integers(129, 65);
  const at::Tensor on_gpu = at::mm(a.to(on_device()), b.to(on_device()));
  EXPECT_TRUE(at::equal(on_gpu.cpu(), at::mm(a, b)));
}

TEST_F(Gpu, AttentionWithinRoundingOfTheCpu) {
  const at::Tensor scores = integers(64, 64).div(4);
  const at::Tensor values = integers(64, 32);
  const auto attend = [](const at::Tensor& s, const at::Tensor& v) {
    return at::mm(at::softmax(s, -1), v);
  };
  const at::Tensor on_gpu = attend(scores.to(on_device()), values.to(on_device())).cpu();
  EXPECT_TRUE(at::allclose(on_gpu, attend(scores, values), 1e-3, 1e-3));
}

/// Of `block` and `gradient`: output and gradients of query, key and value.
std::vector<at::Tensor> attend(const FlashBlock& block, const at::Tensor& gradient) {
  const FlashOutput made = flash_forward(block, block.query.scalar_type());
  const auto zeros = [](const at::Tensor& like) {
    return at::zeros(like.sizes(), like.options().dtype(at::kFloat));
  };
  const FlashGradients sums{zeros(block.query), zeros(block.key), zeros(block.value)};
  add_flash_gradients(block, flash_rows(gradient, made), sums);
  return {made.output.to(at::kFloat), sums.query, sums.key, sums.value};
}

// libtorch's kernel, with the whole causal mask and with a window, four queries to a key.
TEST_F(Gpu, FusedAttentionWithinRoundingOfTheTiles) {
  at::manual_seed(1);
  const at::Tensor query = at::randn({2, 8, 200, 64}).to(at::kBFloat16);
  const at::Tensor key = at::randn({2, 2, 200, 64}).to(at::kBFloat16);
  const at::Tensor value = at::randn({2, 2, 200, 64}).to(at::kBFloat16);
  const at::Tensor gradient = at::randn({2, 8, 200, 64}).to(at::kBFloat16);
  const at::Tensor at_position = at::arange(200);
  const at::Tensor distance = at_position.unsqueeze(1) - at_position.unsqueeze(0);
  for (const std::int64_t window : {0, 70}) {
    const at::Tensor is_later = distance.lt(0);
    const at::Tensor hidden = window == 0 ? is_later : is_later.logical_or(distance.ge(window));
    const FlashMask near{hidden, MaskTiles(hidden), window};
    const FlashMask far{hidden.to(on_device().device()), MaskTiles(hidden), window};
    const auto truth = attend({query, key, value, &near, 0.125}, gradient);
    const auto moved = [&](const at::Tensor& tensor) { return tensor.to(on_device().device()); };
    const FlashBlock block{moved(query), moved(key), moved(value), &far, 0.125};
    ASSERT_TRUE(has_device_attention(block));
    const auto made = attend(block, moved(gradient));
    for (std::size_t i = 0; i < truth.size(); ++i) {
      EXPECT_LT((made[i].cpu() - truth[i]).abs().max().item<float>(),
                0.03F * truth[i].abs().max().item<float>())
          << "part " << i << ", window " << window;
    }
  }
}

TEST_F(Gpu, MarksInAStreamAreInTheOrderOfItsWork) {
  const auto lane = device_->open_lane();
  at::Tensor matrix = at::ones({2048, 2048}, on_device());
  const Mark before = device_->mark();
  for (int i = 0; i < 20; ++i) matrix = at::mm(matrix, matrix).clamp_(0, 1);
  const Mark after = device_->mark();
  // 20 products of 2 * 2048^3 operations take longer than 1 us on any device.
  EXPECT_GT(device_->passed_ns(after), device_->passed_ns(before) + 1000);
}

TEST_F(Gpu, PeakIsThatOfTheTensorsHeldAtOnce) {
  const at::TensorOptions options = on_device();
  const at::Tensor kept = at::empty({1 << 20}, options);
  wait();
  device_->begin_step();
  const Bytes base = device_->peak();
  {
    const at::Tensor a = at::empty({1 << 20}, options);
    const at::Tensor b = at::empty({1 << 20}, options);
  }
  const at::Tensor c = at::empty({1 << 20}, options);
  EXPECT_EQ((device_->peak() - base).count(), std::int64_t{2} * 4 * (1 << 20));
}

/// NCCL itself, with one rank.
std::unique_ptr<Communicator> make_alone(CudaDevice& device, Store& store) {
  NcclProcess::Options options;
  options.api = load_nccl(default_nccl_library());
  options.streams = &device;
  options.store = &store;
  options.timeout = seconds(60);
  options.flag_interval = seconds(1);
  const auto process = std::make_shared<NcclProcess>(options);
  auto connection = std::make_unique<NcclConnection>(process, "alone");
  NcclConfig config = make_nccl_config(connection->name(), {});
  device.current();
  connection->open([&](NcclComm* comm) {
    NcclUniqueId id{};
    EXPECT_EQ(options.api->get_unique_id(&id), NcclResult::Success);
    return options.api->init_rank_config(comm, 1, id, 0, &config);
  });
  return make_nccl_communicator(
      {.connection = std::move(connection), .registration = BufferRegistration::On});
}

TEST_F(Gpu, CollectivesOfNcclOnOneDeviceCopy) {
  try {
    describe_nccl();
  } catch (const std::exception& missing) {
    GTEST_SKIP() << missing.what();
  }
  MemoryStore store{seconds(30)};
  const auto group = make_alone(*device_, store);
  const at::Tensor input = at::arange(64, at::kFloat).to(on_device());
  at::Tensor buffer = input.clone();
  const auto registered = group->register_buffer(buffer);
  group->all_reduce(buffer, Reduction::Sum);
  EXPECT_TRUE(at::equal(buffer, input));
  at::Tensor output = at::zeros_like(input);
  group->reduce_scatter(input, output);
  EXPECT_TRUE(at::equal(output, input));
  output.zero_();
  group->exchange(input, 0, output, 0);
  EXPECT_TRUE(at::equal(output, input));
  const auto part = group->split(0, 0);
  EXPECT_EQ(part->size(), 1);
  part->barrier();
}

}  // namespace
}  // namespace foresail::runtime
