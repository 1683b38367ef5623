#include <ATen/ATen.h>

#include "foresail/base/error.h"
#include "foresail/runtime/communicator.h"

namespace foresail::runtime {
namespace {

class LocalCommunicator : public Communicator {
 public:
  explicit LocalCommunicator(const std::string& name) : Communicator(name, 0, 1) {}

  void all_reduce(Tensor&, Reduction) override {}
  void all_gather(const Tensor& input, Tensor& output) override { copy(input, output); }
  void reduce_scatter(const Tensor& input, Tensor& output) override { copy(input, output); }
  void broadcast(Tensor&, int root) override { FORESAIL_EXPECT(root == 0); }
  void all_to_all(const Tensor& input, Tensor& output) override { copy(input, output); }
  void all_to_all_rows(const Tensor& input, const std::vector<std::int64_t>&, Tensor& output,
                       const std::vector<std::int64_t>&) override {
    copy(input, output);
  }
  void send(const Tensor&, int) override { contract_failed("a group of one", __FILE__, __LINE__); }
  void recv(Tensor&, int) override { contract_failed("a group of one", __FILE__, __LINE__); }
  void exchange(const Tensor& output, int, Tensor& input, int) override { copy(output, input); }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int) override {
    return std::make_unique<LocalCommunicator>(name());
  }
  void abort() override {}

 private:
  static void copy(const Tensor& input, Tensor& output) {
    FORESAIL_EXPECT(input.numel() == output.numel());
    output.view(-1).copy_(input.view(-1));
  }
};

}  // namespace

std::shared_ptr<void> Communicator::register_buffer(Tensor&) {
  return nullptr;
}

std::unique_ptr<Communicator> make_local_communicator(const std::string& name) {
  return std::make_unique<LocalCommunicator>(name);
}

}  // namespace foresail::runtime
