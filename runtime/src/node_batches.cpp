#include "foresail/runtime/node_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "foresail/base/error.h"
#include "shared_memory.h"

namespace foresail::runtime {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kSlots = 2;
constexpr std::size_t kMessageBytes = 1024;
/// Between two looks whether the other side still lives.
constexpr milliseconds kPatience{200};
constexpr std::size_t kAlignment = 64;

/// In front of the slots; every counter has a cache line of its own. Zeros are the start.
struct Header {
  alignas(kAlignment) SharedCounter filled;  ///< steps whose samples are there
  alignas(kAlignment) SharedCounter failed;  ///< 1 + the ErrorCode of what ended the reader; or 0
  char message[kMessageBytes];               ///< of that error
};
struct alignas(kAlignment) Taken {
  SharedCounter steps;  ///< that this rank has taken
};

int replica_of(const Job& job, RankId rank) {
  return job.program.grid.coordinates(rank)[static_cast<std::size_t>(program::Axis::Dp)];
}

}  // namespace

bool loads_batches(const program::Program& program, RankId rank) {
  const auto& ops = program.of(rank).ops;
  return std::any_of(ops.begin(), ops.end(), [](const program::Op& op) {
    return op.kind == program::OpKind::Host && op.host == program::HostWork::LoadBatch;
  });
}

struct NodeBatches::Impl {
  explicit Impl(const Options& from) : options(from) {
    const Job& job = *options.job;
    std::set<int> replicas;
    for (const RankId rank : options.ranks) replicas.insert(replica_of(job, rank));
    const std::int64_t microbatch = job.split.microbatch_size;
    const std::int64_t dp = job.program.grid.size(program::Axis::Dp);
    places.assign(static_cast<std::size_t>(job.training.global_batch_size), -1);
    std::int64_t count = 0;
    for (std::int64_t at = 0; at < job.training.global_batch_size; ++at) {
      if (!replicas.contains(static_cast<int>(at / microbatch % dp))) continue;
      places[static_cast<std::size_t>(at)] = count++;
    }
    sample_tokens = static_cast<std::size_t>(job.training.sequence_length + 1);
    slot_tokens = static_cast<std::size_t>(count) * sample_tokens;
    const auto self = std::ranges::find(options.ranks, options.rank);
    FORESAIL_EXPECT(self != options.ranks.end());
    place = static_cast<std::size_t>(self - options.ranks.begin());
  }

  ~Impl() {
    is_ending = true;
    if (thread.joinable()) thread.join();
  }

  std::size_t bytes() const {
    return sizeof(Header) + options.ranks.size() * sizeof(Taken) +
           kSlots * slot_tokens * sizeof(std::int32_t);
  }
  Header& header() const { return *reinterpret_cast<Header*>(memory->data()); }
  Taken* taken() const { return reinterpret_cast<Taken*>(memory->data() + sizeof(Header)); }
  std::int32_t* slot(std::uint32_t step) const {
    std::byte* first = memory->data() + sizeof(Header) + options.ranks.size() * sizeof(Taken);
    return reinterpret_cast<std::int32_t*>(first) + step % kSlots * slot_tokens;
  }

  void read_ahead() {
    try {
      for (std::uint32_t step = 0; step < static_cast<std::uint32_t>(options.steps); ++step) {
        if (!wait_for_slot(step)) return;
        fill(step);
        header().filled.set(step + 1);
      }
    } catch (const Error& error) {
      std::strncpy(header().message, error.what(), kMessageBytes - 1);
      header().failed.set(1 + static_cast<std::uint32_t>(error.code()));
      header().filled.set(header().filled.value());  // wakes who waits
    }
  }

  /// Until every rank has taken the step that stands in the slot of `step`. False if it ends first.
  bool wait_for_slot(std::uint32_t step) {
    if (step < kSlots) return !is_ending;
    const auto needed = static_cast<std::uint32_t>(step + 1 - kSlots);
    for (std::size_t i = 0; i < options.ranks.size(); ++i) {
      const SharedCounter& steps = taken()[i].steps;
      for (std::uint32_t seen = steps.value(); seen < needed; seen = steps.value()) {
        if (is_ending) return false;
        steps.wait_while(seen, kPatience);
      }
    }
    return !is_ending;
  }

  void fill(std::uint32_t step) {
    const std::int64_t first = step * options.job->training.global_batch_size;
    std::int32_t* into = slot(step);
    for (std::size_t at = 0; at < places.size(); ++at) {
      if (places[at] < 0) continue;
      samples->read(first + static_cast<std::int64_t>(at), {into, sample_tokens});
      into += sample_tokens;
    }
  }

  void wait_for(std::uint32_t step) const {
    const SharedCounter& filled = header().filled;
    for (std::uint32_t seen = filled.value(); seen <= step; seen = filled.value()) {
      if (const std::uint32_t failed = header().failed.value(); failed > 0) {
        throw Error(static_cast<ErrorCode>(failed - 1), header().message);
      }
      if (!memory->has_owner()) {
        throw Error(ErrorCode::Device, fmt::format("rank {}, which reads the data of this node, "
                                                   "has ended",
                                                   options.ranks.front().value));
      }
      filled.wait_while(seen, kPatience);
    }
  }

  Options options;
  std::vector<std::int64_t> places;  // in a slot, of the batch's samples; -1: not of this node
  std::size_t sample_tokens = 0;
  std::size_t slot_tokens = 0;
  std::size_t place = 0;  // of this rank among those that load
  std::unique_ptr<SharedMemory> memory;
  std::unique_ptr<SampleSource> samples;  // the reader's
  std::atomic<bool> is_ending = false;
  std::thread thread;
};

NodeBatches::NodeBatches(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

NodeBatches::~NodeBatches() = default;

std::unique_ptr<NodeBatches> NodeBatches::serve(const Options& options,
                                                std::unique_ptr<SampleSource> samples) {
  auto impl = std::make_unique<Impl>(options);
  impl->memory = std::make_unique<SharedMemory>(impl->bytes());
  impl->samples = std::move(samples);
  Impl* shared = impl.get();
  impl->thread = std::thread([shared] { shared->read_ahead(); });
  return std::unique_ptr<NodeBatches>(new NodeBatches(std::move(impl)));
}

std::unique_ptr<NodeBatches> NodeBatches::attach(const Options& options,
                                                 const std::string& handle) {
  auto impl = std::make_unique<Impl>(options);
  impl->memory = std::make_unique<SharedMemory>(handle, impl->bytes());
  return std::unique_ptr<NodeBatches>(new NodeBatches(std::move(impl)));
}

void NodeBatches::load(int step, std::span<const std::int64_t> indices,
                       std::span<std::int32_t> tokens) {
  FORESAIL_EXPECT(tokens.size() == indices.size() * impl_->sample_tokens);
  const auto number = static_cast<std::uint32_t>(step);
  SharedCounter& taken = impl_->taken()[impl_->place].steps;
  FORESAIL_EXPECT(taken.value() == number);
  FORESAIL_EXPECT(step < impl_->options.steps);
  impl_->wait_for(number);
  const std::int64_t first = step * impl_->options.job->training.global_batch_size;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t at = impl_->places.at(static_cast<std::size_t>(indices[i] - first));
    FORESAIL_EXPECT(at >= 0);
    const std::int32_t* from =
        impl_->slot(number) + static_cast<std::size_t>(at) * impl_->sample_tokens;
    std::copy_n(from, impl_->sample_tokens, tokens.data() + i * impl_->sample_tokens);
  }
  taken.set(number + 1);
}

std::string NodeBatches::handle() const {
  return impl_->memory->handle();
}

}  // namespace foresail::runtime
