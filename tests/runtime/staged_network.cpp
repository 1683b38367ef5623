#include "staged_network.h"

#include <ATen/ATen.h>

#include "host_copy.h"

namespace foresail::testing {
namespace {

using runtime::Communicator;
using runtime::Reduction;
using runtime::Tensor;

class StagedCommunicator : public Communicator {
 public:
  explicit StagedCommunicator(std::unique_ptr<Communicator> inner)
      : Communicator(inner->name(), inner->rank(), inner->size()), inner_(std::move(inner)) {}

  void all_reduce(Tensor& tensor, Reduction reduction) override {
    runtime::edit_on_host(tensor, [&](Tensor& host) { inner_->all_reduce(host, reduction); });
  }
  void all_gather(const Tensor& input, Tensor& output) override {
    runtime::edit_on_host(output,
                          [&](Tensor& host) { inner_->all_gather(runtime::to_host(input), host); });
  }
  void reduce_scatter(const Tensor& input, Tensor& output) override {
    runtime::edit_on_host(
        output, [&](Tensor& host) { inner_->reduce_scatter(runtime::to_host(input), host); });
  }
  void broadcast(Tensor& tensor, int root) override {
    runtime::edit_on_host(tensor, [&](Tensor& host) { inner_->broadcast(host, root); });
  }
  void all_to_all(const Tensor& input, Tensor& output) override {
    runtime::edit_on_host(output,
                          [&](Tensor& host) { inner_->all_to_all(runtime::to_host(input), host); });
  }
  void all_to_all_rows(const Tensor& input, const std::vector<std::int64_t>& sends, Tensor& output,
                       const std::vector<std::int64_t>& receives) override {
    runtime::edit_on_host(output, [&](Tensor& host) {
      inner_->all_to_all_rows(runtime::to_host(input), sends, host, receives);
    });
  }
  void send(const Tensor& tensor, int peer) override {
    inner_->send(runtime::to_host(tensor), peer);
  }
  void recv(Tensor& tensor, int peer) override {
    runtime::edit_on_host(tensor, [&](Tensor& host) { inner_->recv(host, peer); });
  }
  void exchange(const Tensor& output, int to, Tensor& input, int from) override {
    runtime::edit_on_host(
        input, [&](Tensor& host) { inner_->exchange(runtime::to_host(output), to, host, from); });
  }
  void barrier() override { inner_->barrier(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<StagedCommunicator>(inner_->split(color, key));
  }
  void abort() override { inner_->abort(); }

 private:
  std::unique_ptr<Communicator> inner_;
};

class StagedEndpoint : public runtime::Endpoint {
 public:
  explicit StagedEndpoint(std::unique_ptr<runtime::Endpoint> inner) : inner_(std::move(inner)) {}

  std::unique_ptr<Communicator> connect(const Group& group, runtime::Store& store) const override {
    if (group.size == 1) return inner_->connect(group, store);
    return std::make_unique<StagedCommunicator>(inner_->connect(group, store));
  }
  void stand_by(const std::string& kind, runtime::Store& store) const override {
    inner_->stand_by(kind, store);
  }
  void report_failure(const std::string& reason) const override { inner_->report_failure(reason); }

 private:
  std::unique_ptr<runtime::Endpoint> inner_;
};

}  // namespace

std::unique_ptr<runtime::Endpoint> make_staged_endpoint(std::unique_ptr<runtime::Endpoint> inner) {
  return std::make_unique<StagedEndpoint>(std::move(inner));
}

}  // namespace foresail::testing
