#include "slow_network.h"

#include <ATen/ATen.h>

#include <thread>

namespace foresail::testing {
namespace {

using runtime::Communicator;
using runtime::Reduction;
using runtime::Tensor;

class SlowCommunicator : public Communicator {
 public:
  SlowCommunicator(const Slowness& slow, std::unique_ptr<Communicator> inner)
      : Communicator(inner->name(), inner->rank(), inner->size()),
        slow_(slow),
        inner_(std::move(inner)) {}

  void all_reduce(Tensor& tensor, Reduction reduction) override {
    pause(tensor);
    inner_->all_reduce(tensor, reduction);
  }
  void all_gather(const Tensor& input, Tensor& output) override {
    pause(output);
    inner_->all_gather(input, output);
  }
  void reduce_scatter(const Tensor& input, Tensor& output) override {
    pause(input);
    inner_->reduce_scatter(input, output);
  }
  void broadcast(Tensor& tensor, int root) override {
    pause(tensor);
    inner_->broadcast(tensor, root);
  }
  void all_to_all(const Tensor& input, Tensor& output) override {
    pause(input);
    inner_->all_to_all(input, output);
  }
  void all_to_all_rows(const Tensor& input, const std::vector<std::int64_t>& sends, Tensor& output,
                       const std::vector<std::int64_t>& receives) override {
    pause(input);
    inner_->all_to_all_rows(input, sends, output, receives);
  }
  /// The sender's end is the slow one: a receiver waits for it.
  void send(const Tensor& tensor, int peer) override {
    pause(tensor);
    inner_->send(tensor, peer);
  }
  void recv(Tensor& tensor, int peer) override { inner_->recv(tensor, peer); }
  void exchange(const Tensor& output, int to, Tensor& input, int from) override {
    pause(output);
    inner_->exchange(output, to, input, from);
  }
  void barrier() override { inner_->barrier(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<SlowCommunicator>(slow_, inner_->split(color, key));
  }
  void abort() override { inner_->abort(); }

 private:
  void pause(const Tensor& tensor) const {
    if (tensor.nbytes() < slow_.bytes_min) return;
    std::this_thread::sleep_for(slow_.delay + slow_.per_kib * (tensor.nbytes() / 1024));
  }

  Slowness slow_;
  std::unique_ptr<Communicator> inner_;
};

class SlowEndpoint : public runtime::Endpoint {
 public:
  SlowEndpoint(runtime::LocalNetwork& network, const Slowness& slow)
      : slow_(slow), inner_(network.endpoint()) {}

  std::unique_ptr<Communicator> connect(const Group& group, runtime::Store& store) const override {
    auto inner = inner_->connect(group, store);
    if (group.size == 1) return inner;
    return std::make_unique<SlowCommunicator>(slow_, std::move(inner));
  }
  void stand_by(const std::string&, runtime::Store&) const override {}
  void report_failure(const std::string&) const override {}

 private:
  Slowness slow_;
  std::unique_ptr<runtime::Endpoint> inner_;
};

}  // namespace

std::unique_ptr<runtime::Endpoint> slow_endpoint(runtime::LocalNetwork& network,
                                                 const Slowness& slowness) {
  return std::make_unique<SlowEndpoint>(network, slowness);
}

}  // namespace foresail::testing
