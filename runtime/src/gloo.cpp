#include "foresail/runtime/gloo.h"

#include <ATen/ATen.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <type_traits>

#include "foresail/base/error.h"
#include "split_group.h"

namespace foresail::runtime {
namespace {

/// Slots of our own operations; Gloo's collectives use the prefixes below 0x10.
constexpr std::uint8_t kMessageSlot = 0x20;
constexpr std::uint8_t kReduceScatterSlot = 0x21;
constexpr std::uint8_t kRowsSlot = 0x22;

/// Gloo asks its store for the addresses of the group's members.
class RendezvousStore : public gloo::rendezvous::Store {
 public:
  RendezvousStore(runtime::Store& store, std::string prefix)
      : store_(store), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(prefix_ + key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) store_.get(prefix_ + key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  runtime::Store& store_;
  std::string prefix_;
};

std::size_t byte_size(const Tensor& tensor) {
  return tensor.nbytes();
}

char* bytes_of(const Tensor& tensor) {
  FORESAIL_EXPECT(tensor.is_contiguous());
  return static_cast<char*>(tensor.data_ptr());
}

template <class Element>
Element* elements_of(const Tensor& tensor) {
  FORESAIL_EXPECT(tensor.is_contiguous());
  return tensor.data_ptr<Element>();
}

/// Calls `work` with a pointer of the tensor's type: fp32 or bf16.
template <class Work>
void with_elements(const Tensor& tensor, const Work& work) {
  FORESAIL_EXPECT(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16);
  if (tensor.scalar_type() == at::kFloat) {
    work(elements_of<float>(tensor));
  } else {
    work(elements_of<at::BFloat16>(tensor));
  }
}

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(const GlooEndpoint& endpoint, const GlooEndpoint::Group& group, Store& store,
                   std::shared_ptr<gloo::rendezvous::Context> context)
      : Communicator(group.name, group.rank, group.size),
        endpoint_(endpoint),
        store_(store),
        context_(std::move(context)) {}

  void all_reduce(Tensor& tensor, Reduction reduction) override {
    guarded("all_reduce", byte_size(tensor), [&] {
      if (reduction == Reduction::Sum) {
        sum_in_ring(tensor);
        return;
      }
      gloo::AllreduceOptions options(context_);
      options.setOutput(elements_of<float>(tensor), static_cast<std::size_t>(tensor.numel()));
      using Reduce = void (*)(void*, const void*, const void*, std::size_t);
      const Reduce max = &gloo::max<float>;
      options.setReduceFunction(max);
      options.setTag(next_tag());
      gloo::allreduce(options);
    });
  }

  void all_gather(const Tensor& input, Tensor& output) override {
    FORESAIL_EXPECT(output.numel() == input.numel() * size());
    if (output.numel() == 0) return;  // Gloo divides by the size: experts may get no token
    guarded("all_gather", byte_size(output), [&] {
      gloo::AllgatherOptions options(context_);
      options.setInput(bytes_of(input), byte_size(input));
      options.setOutput(bytes_of(output), byte_size(output));
      options.setTag(next_tag());
      gloo::allgather(options);
    });
  }

  void reduce_scatter(const Tensor& input, Tensor& output) override {
    FORESAIL_EXPECT(input.numel() == output.numel() * size());
    FORESAIL_EXPECT(input.scalar_type() == output.scalar_type());
    if (output.numel() == 0) return;
    guarded("reduce_scatter", byte_size(input), [&] {
      with_elements(input, [&](const auto* elements) {
        using Element = std::remove_const_t<std::remove_pointer_t<decltype(elements)>>;
        this->ring_reduce_scatter(elements, elements_of<Element>(output),
                                  static_cast<std::size_t>(output.numel()));
      });
    });
  }

  void broadcast(Tensor& tensor, int root) override {
    guarded("broadcast", byte_size(tensor), [&] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(bytes_of(tensor), byte_size(tensor));
      options.setRoot(root);
      options.setTag(next_tag());
      gloo::broadcast(options);
    });
  }

  void all_to_all(const Tensor& input, Tensor& output) override {
    FORESAIL_EXPECT(input.numel() == output.numel());
    FORESAIL_EXPECT(input.numel() % size() == 0);
    guarded("all_to_all", byte_size(input), [&] {
      gloo::AlltoallOptions options(context_);
      options.setInput(bytes_of(input), byte_size(input));
      options.setOutput(bytes_of(output), byte_size(output));
      options.setTag(next_tag());
      gloo::alltoall(options);
    });
  }

  void all_to_all_rows(const Tensor& input, const std::vector<std::int64_t>& sends, Tensor& output,
                       const std::vector<std::int64_t>& receives) override {
    guarded("all_to_all_rows", byte_size(input),
            [&] { trade_rows(input, sends, output, receives); });
  }

  void send(const Tensor& tensor, int peer) override {
    guarded("send", byte_size(tensor), [&] {
      auto buffer = context_->createUnboundBuffer(bytes_of(tensor), byte_size(tensor));
      buffer->send(peer, gloo::Slot::build(kMessageSlot, 0));
      wait(buffer->waitSend(context_->getTimeout()));
    });
  }

  void recv(Tensor& tensor, int peer) override {
    guarded("recv", byte_size(tensor), [&] {
      auto buffer = context_->createUnboundBuffer(bytes_of(tensor), byte_size(tensor));
      buffer->recv(peer, gloo::Slot::build(kMessageSlot, 0));
      wait(buffer->waitRecv(context_->getTimeout()));
    });
  }

  void exchange(const Tensor& output, int to, Tensor& input, int from) override {
    guarded("exchange", byte_size(output), [&] {
      auto out = context_->createUnboundBuffer(bytes_of(output), byte_size(output));
      auto in = context_->createUnboundBuffer(bytes_of(input), byte_size(input));
      out->send(to, gloo::Slot::build(kMessageSlot, 0));
      in->recv(from, gloo::Slot::build(kMessageSlot, 0));
      wait(in->waitRecv(context_->getTimeout()));
      wait(out->waitSend(context_->getTimeout()));
    });
  }

  void barrier() override {
    guarded("barrier", 0, [&] {
      gloo::BarrierOptions options(context_);
      options.setTag(next_tag());
      gloo::barrier(options);
    });
  }

  std::unique_ptr<Communicator> split(int color, int key) override;

  void abort() override { context_->closeConnections(); }

 private:
  /// Ring: in step k a rank passes on the part that ends up with the rank k+1 places before it,
  /// so that after size-1 steps part r has visited every rank and arrives at r. Sums are formed in
  /// ring order, ending with the owner's own term. Sums of bf16 are rounded at every step, so that
  /// what travels has the Program's bytes.
  template <class Element>
  void ring_reduce_scatter(const Element* source, Element* target, std::size_t part) {
    const int n = size();
    const auto part_of = [&](int shift) {
      return source + static_cast<std::size_t>((rank() + shift + n) % n) * part;
    };
    std::vector<Element> outgoing(part_of(-1), part_of(-1) + part);
    std::vector<Element> incoming(part);
    const std::uint64_t slot = gloo::Slot::build(kReduceScatterSlot, next_tag());
    for (int step = 0; step + 1 < n; ++step) {
      auto out = context_->createUnboundBuffer(outgoing.data(), part * sizeof(Element));
      auto in = context_->createUnboundBuffer(incoming.data(), part * sizeof(Element));
      out->send((rank() + 1) % n, slot);
      in->recv((rank() + n - 1) % n, slot);
      wait(in->waitRecv(context_->getTimeout()));
      wait(out->waitSend(context_->getTimeout()));
      const Element* own = part_of(-2 - step);
      for (std::size_t i = 0; i < part; ++i) {
        outgoing[i] = static_cast<float>(incoming[i]) + static_cast<float>(own[i]);
      }
    }
    std::copy(outgoing.begin(), outgoing.end(), target);
  }

  /// A reduce_scatter of equal parts, the last filled up with zeros (in a copy), and their
  /// all_gather: every element is summed in the order of its part's ring, in each sum of two terms
  /// rounded.
  void sum_in_ring(Tensor& tensor) {
    const std::int64_t part = (tensor.numel() + size() - 1) / size();
    const at::Tensor flat = tensor.view(-1);
    const bool is_even = part * size() == flat.numel();
    at::Tensor whole = is_even ? flat : at::zeros({part * size()}, tensor.options());
    if (!is_even) whole.narrow(0, 0, flat.numel()).copy_(flat);
    at::Tensor mine = at::empty({part}, tensor.options());
    with_elements(whole, [&](const auto* elements) {
      using Element = std::remove_const_t<std::remove_pointer_t<decltype(elements)>>;
      this->ring_reduce_scatter(elements, elements_of<Element>(mine),
                                static_cast<std::size_t>(part));
    });
    all_gather(mine, whole);
    if (!is_even) flat.copy_(whole.narrow(0, 0, flat.numel()));
  }

  void trade_rows(const Tensor& input, const std::vector<std::int64_t>& sends, Tensor& output,
                  const std::vector<std::int64_t>& receives) {
    const auto row = static_cast<std::size_t>(input.stride(0) * input.element_size());
    auto out = context_->createUnboundBuffer(bytes_of(input), byte_size(input));
    auto in = context_->createUnboundBuffer(bytes_of(output), byte_size(output));
    const std::uint64_t slot = gloo::Slot::build(kRowsSlot, next_tag());
    std::size_t from = 0;
    std::size_t to = 0;
    int sent = 0;
    int received = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      const std::size_t out_bytes = static_cast<std::size_t>(sends[at]) * row;
      const std::size_t in_bytes = static_cast<std::size_t>(receives[at]) * row;
      FORESAIL_EXPECT(from + out_bytes <= byte_size(input));
      FORESAIL_EXPECT(to + in_bytes <= byte_size(output));
      if (peer == rank()) {
        FORESAIL_EXPECT(out_bytes == in_bytes);
        std::copy_n(bytes_of(input) + from, out_bytes, bytes_of(output) + to);
      } else {
        if (out_bytes > 0) out->send(peer, slot, from, out_bytes);
        if (in_bytes > 0) in->recv(peer, slot, to, in_bytes);
        sent += out_bytes > 0 ? 1 : 0;
        received += in_bytes > 0 ? 1 : 0;
      }
      from += out_bytes;
      to += in_bytes;
    }
    for (; received > 0; --received) wait(in->waitRecv(context_->getTimeout()));
    for (; sent > 0; --sent) wait(out->waitSend(context_->getTimeout()));
  }

  static void wait(bool is_done) {
    if (!is_done) throw std::runtime_error("aborted");
  }

  std::uint32_t next_tag() { return tag_++; }

  template <class Call>
  void guarded(const char* what, std::size_t bytes, const Call& call) {
    try {
      call();
    } catch (const ContractViolation&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(ErrorCode::Device, name() + ": " + what + " of " + std::to_string(bytes) +
                                         " bytes: " + error.what());
    }
  }

  const GlooEndpoint& endpoint_;
  Store& store_;
  std::shared_ptr<gloo::rendezvous::Context> context_;  // Gloo's operations share it
  std::uint32_t tag_ = 0;
  int splits_ = 0;
};

std::unique_ptr<Communicator> GlooCommunicator::split(int color, int key) {
  return endpoint_.connect(split_group(*this, color, key, splits_++), store_);
}

}  // namespace

struct GlooEndpoint::Device {
  std::shared_ptr<gloo::transport::Device> transport;  // Gloo's pairs share it
  Options options;
};

GlooEndpoint::GlooEndpoint(const Options& options) : device_(std::make_shared<Device>()) {
  device_->options = options;
  gloo::transport::tcp::attr attributes;
  attributes.hostname = options.interface.empty() ? options.host : "";
  attributes.iface = options.interface;
  try {
    device_->transport = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::Device, (options.interface.empty() ? options.host : options.interface) +
                                       ": cannot listen there: " + error.what());
  }
}

GlooEndpoint::~GlooEndpoint() = default;

std::unique_ptr<Communicator> GlooEndpoint::connect(const Group& group, Store& store) const {
  if (group.size == 1) return make_local_communicator(group.name);
  auto context = std::make_shared<gloo::rendezvous::Context>(group.rank, group.size);
  context->setTimeout(device_->options.connect_timeout);
  RendezvousStore rendezvous(store, "gloo/" + group.name + "/");
  try {
    context->connectFullMesh(rendezvous, device_->transport);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::Device, group.name + ": cannot connect its " +
                                       std::to_string(group.size) + " ranks: " + error.what());
  }
  context->setTimeout(device_->options.timeout);
  return std::make_unique<GlooCommunicator>(*this, group, store, std::move(context));
}

}  // namespace foresail::runtime
