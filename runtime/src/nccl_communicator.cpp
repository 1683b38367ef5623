#include "nccl_communicator.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <functional>
#include <vector>

#include "foresail/base/error.h"
#include "storage.h"

namespace foresail::runtime {
namespace {

NcclType type_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return NcclType::Float32;
    case at::kDouble:
      return NcclType::Float64;
    case at::kHalf:
      return NcclType::Float16;
    case at::kBFloat16:
      return NcclType::Bfloat16;
    case at::kLong:
      return NcclType::Int64;
    case at::kInt:
      return NcclType::Int32;
    case at::kChar:
      return NcclType::Int8;
    case at::kByte:
    case at::kBool:
      return NcclType::Uint8;
    default:
      contract_failed("a type that NCCL moves", __FILE__, __LINE__);
  }
}

void* memory_of(const Tensor& tensor) {
  FORESAIL_EXPECT(tensor.is_contiguous());
  return tensor.data_ptr();
}

std::size_t count_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

NcclReduction reduction_of(Reduction reduction) {
  return reduction == Reduction::Sum ? NcclReduction::Sum : NcclReduction::Max;
}

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(NcclMember member)
      : Communicator(member.connection->name(), member.rank, member.size),
        options_(member.options),
        registration_(member.registration),
        connection_(std::move(member.connection)) {}

  void all_reduce(Tensor& tensor, Reduction reduction) override {
    run("all_reduce", tensor, {}, [&](NcclComm comm, NcclStream stream) {
      return api().all_reduce(memory_of(tensor), memory_of(tensor), count_of(tensor),
                              type_of(tensor), reduction_of(reduction), comm, stream);
    });
  }

  void all_gather(const Tensor& input, Tensor& output) override {
    FORESAIL_EXPECT(output.numel() == input.numel() * size());
    run("all_gather", output, {&input}, [&](NcclComm comm, NcclStream stream) {
      return api().all_gather(memory_of(input), memory_of(output), count_of(input), type_of(input),
                              comm, stream);
    });
  }

  void reduce_scatter(const Tensor& input, Tensor& output) override {
    FORESAIL_EXPECT(input.numel() == output.numel() * size());
    run("reduce_scatter", input, {&output}, [&](NcclComm comm, NcclStream stream) {
      return api().reduce_scatter(memory_of(input), memory_of(output), count_of(output),
                                  type_of(input), NcclReduction::Sum, comm, stream);
    });
  }

  void broadcast(Tensor& tensor, int root) override {
    run("broadcast", tensor, {}, [&](NcclComm comm, NcclStream stream) {
      return api().broadcast(memory_of(tensor), memory_of(tensor), count_of(tensor),
                             type_of(tensor), root, comm, stream);
    });
  }

  void all_to_all(const Tensor& input, Tensor& output) override {
    FORESAIL_EXPECT(input.numel() == output.numel());
    FORESAIL_EXPECT(input.numel() % size() == 0);
    const std::vector<std::int64_t> parts(static_cast<std::size_t>(size()), input.numel() / size());
    trade("all_to_all", {input, parts, 1}, {output, parts, 1});
  }

  void all_to_all_rows(const Tensor& input, const std::vector<std::int64_t>& sends, Tensor& output,
                       const std::vector<std::int64_t>& receives) override {
    const auto at = static_cast<std::size_t>(rank());
    FORESAIL_EXPECT(sends[at] == receives[at]);
    trade("all_to_all_rows", {input, sends, input.stride(0)}, {output, receives, output.stride(0)});
  }

  void send(const Tensor& tensor, int peer) override {
    run("send", tensor, {}, [&](NcclComm comm, NcclStream stream) {
      return api().send(memory_of(tensor), count_of(tensor), type_of(tensor), peer, comm, stream);
    });
  }

  void recv(Tensor& tensor, int peer) override {
    run("recv", tensor, {}, [&](NcclComm comm, NcclStream stream) {
      return api().recv(memory_of(tensor), count_of(tensor), type_of(tensor), peer, comm, stream);
    });
  }

  void exchange(const Tensor& output, int to, Tensor& input, int from) override {
    // One group: neither end waits for the other to receive first.
    run("exchange", output, {&input}, [&](NcclComm comm, NcclStream stream) {
      return run_group(api(), {[&] {
                                 return api().send(memory_of(output), count_of(output),
                                                   type_of(output), to, comm, stream);
                               },
                               [&] {
                                 return api().recv(memory_of(input), count_of(input),
                                                   type_of(input), from, comm, stream);
                               }});
    });
  }

  void barrier() override {
    if (!token_.defined()) token_ = connection_->process().options().streams->make_token();
    all_reduce(token_, Reduction::Sum);
    connection_->finish("barrier");
  }

  std::unique_ptr<Communicator> split(int color, int key) override;

  std::shared_ptr<void> register_buffer(Tensor& buffer) override;

  void abort() override { connection_->process().stop(name() + ": aborted by its owner"); }

 private:
  const NcclApi& api() const { return connection_->process().api(); }

  /// `measured` and `others` are what the operation uses.
  void run(const char* what, const Tensor& measured, std::initializer_list<const Tensor*> others,
           const NcclConnection::Call& call) {
    StreamSource& streams = *connection_->process().options().streams;
    connection_->run(what, measured.nbytes(), call);
    void* stream = streams.current();
    streams.keep_for(measured, stream);
    for (const Tensor* other : others) streams.keep_for(*other, stream);
  }

  /// Parts of a tensor, one behind the other by rank, counted in units of `unit` elements.
  struct Parts {
    const Tensor& whole;
    const std::vector<std::int64_t>& sizes;
    std::int64_t unit;
  };
  void trade(const char* what, const Parts& sends, const Parts& receives);
  /// NVLink SHARP reduces in registered memory only if NCCL has allocated it.
  void move_to_library_memory(Tensor& buffer);

  NcclGroupOptions options_;
  BufferRegistration registration_;
  std::shared_ptr<NcclConnection> connection_;  // shared with registered buffers
  at::Tensor token_;                            // what a barrier reduces
  int splits_ = 0;
};

void NcclCommunicator::trade(const char* what, const Parts& sends, const Parts& receives) {
  run(what, sends.whole, {&receives.whole}, [&](NcclComm comm, NcclStream stream) {
    std::vector<std::function<NcclResult()>> calls;
    const auto size = static_cast<std::size_t>(sends.whole.element_size());
    auto* from = static_cast<char*>(memory_of(sends.whole));
    auto* to = static_cast<char*>(memory_of(receives.whole));
    const NcclType type = type_of(sends.whole);
    for (int peer = 0; peer < this->size(); ++peer) {
      const auto at = static_cast<std::size_t>(peer);
      const auto out = static_cast<std::size_t>(sends.sizes[at] * sends.unit);
      const auto in = static_cast<std::size_t>(receives.sizes[at] * receives.unit);
      if (out > 0) {
        calls.emplace_back([=, this] { return api().send(from, out, type, peer, comm, stream); });
      }
      if (in > 0) {
        calls.emplace_back([=, this] { return api().recv(to, in, type, peer, comm, stream); });
      }
      from += out * size;
      to += in * size;
    }
    return run_group(api(), calls);
  });
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  NcclMember part;
  part.options = options_;
  part.registration = registration_;
  const std::string made = fmt::format("{}/split{}.{}", name(), splits_++, color);
  auto into = std::make_unique<NcclConnection>(connection_->shared_process(), made);
  NcclConfig config = make_nccl_config(into->name(), options_);
  connection_->split(color, key, into.get(), &config);
  into->ask("count", [&](NcclComm comm) { return api().count(comm, &part.size); });
  into->ask("rank", [&](NcclComm comm) { return api().user_rank(comm, &part.rank); });
  part.connection = std::move(into);
  return make_nccl_communicator(std::move(part));
}

void NcclCommunicator::move_to_library_memory(Tensor& buffer) {
  void* memory = nullptr;
  connection_->ask(fmt::format("allocation of {} bytes", buffer.nbytes()),
                   [&](NcclComm) { return api().mem_alloc(&memory, buffer.nbytes()); });
  at::Tensor moved = at::from_blob(
      memory, buffer.sizes(),
      // Shared with the buffer, which may outlive the communicator.
      [process = connection_->shared_process()](void* gone) { process->api().mem_free(gone); },
      buffer.options());
  moved.copy_(buffer);
  take_storage(buffer);
  give_storage(buffer, moved);
}

std::shared_ptr<void> NcclCommunicator::register_buffer(Tensor& buffer) {
  if (registration_ == BufferRegistration::Off) return nullptr;
  if (!api().can_register()) {
    throw Error(ErrorCode::Unsupported, fmt::format("{}: NCCL {} cannot register buffers, 2.19 can",
                                                    api().path, api().version_text()));
  }
  move_to_library_memory(buffer);
  void* handle = nullptr;
  connection_->ask(fmt::format("registration of {} bytes", buffer.nbytes()), [&](NcclComm comm) {
    return api().register_buffer(comm, memory_of(buffer), buffer.nbytes(), &handle);
  });
  return {handle, [connection = connection_](void* registered) {
            connection->ask_at_the_end("deregistration", [&](NcclComm comm) {
              return connection->process().api().deregister_buffer(comm, registered);
            });
          }};
}

}  // namespace

NcclConfig make_nccl_config(const std::string& name, const NcclGroupOptions& options) {
  NcclConfig config;
  config.blocking = 0;  // only such a communicator can be aborted while a call is stuck
  config.comm_name = name.c_str();
  config.min_ctas = options.min_ctas.value_or(kNcclUndefined);
  config.max_ctas = options.max_ctas.value_or(kNcclUndefined);
  config.cga_cluster_size = options.cga_cluster_size.value_or(kNcclUndefined);
  config.traffic_class = options.traffic_class.value_or(kNcclUndefined);
  config.net_name = options.net_name.empty() ? nullptr : options.net_name.c_str();
  return config;
}

std::unique_ptr<Communicator> make_nccl_communicator(NcclMember member) {
  return std::make_unique<NcclCommunicator>(std::move(member));
}

}  // namespace foresail::runtime
