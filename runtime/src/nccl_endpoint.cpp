#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "foresail/base/error.h"
#include "foresail/runtime/nccl.h"
#include "nccl_communicator.h"

namespace foresail::runtime {
namespace {

/// What the store does at most for looks at the flag of failures, per second.
constexpr int kLooksPerSecond = 1000;

int integer_of(const std::string& key, const std::string& text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("nccl group: {}: expected a number >= 0, got \"{}\"", key, text));
  }
  return value;
}

void set_option(NcclGroupOptions& options, const std::string& key, const std::string& value) {
  if (key == "net") {
    options.net_name = value;
  } else if (key == "min_ctas") {
    options.min_ctas = integer_of(key, value);
  } else if (key == "max_ctas") {
    options.max_ctas = integer_of(key, value);
  } else if (key == "cga_cluster_size") {
    options.cga_cluster_size = integer_of(key, value);
  } else if (key == "traffic_class") {
    options.traffic_class = integer_of(key, value);
  } else {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("nccl group: unknown key \"{}\": one of min_ctas, max_ctas, "
                            "cga_cluster_size, traffic_class, net",
                            key));
  }
}

/// NCCL gives ids to contiguous blocks of ranks, of which the first `ranks % ids` are one larger.
int first_rank_of_id(int id, int ids, int ranks) {
  return id * (ranks / ids) + std::min(id, ranks % ids);
}

std::string id_key(int id) {
  return "nccl/id/" + std::to_string(id);
}

}  // namespace

void add_group_options(NcclGroups& groups, const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0) {
    throw Error(ErrorCode::InvalidInput,
                fmt::format("nccl group: expected KIND:key=value,..., got \"{}\"", text));
  }
  NcclGroupOptions& options = groups[text.substr(0, colon)];
  std::string rest = text.substr(colon + 1);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos) {
      throw Error(ErrorCode::InvalidInput,
                  fmt::format("nccl group: expected key=value, got \"{}\"", item));
    }
    set_option(options, item.substr(0, equals), item.substr(equals + 1));
    rest = comma == std::string::npos ? std::string() : rest.substr(comma + 1);
  }
}

std::function<bool()> StreamSource::mark_end(void*) {
  return {};
}

void StreamSource::keep_for(const Tensor&, void*) {}

struct NcclEndpoint::Impl {
  explicit Impl(const Options& from)
      : options(from),
        api(load_nccl(from.library.empty() ? default_nccl_library() : from.library)) {}

  /// Of the groups called `kind`, else of those called "*".
  NcclGroupOptions group_options(const std::string& kind) const {
    for (const std::string& key : {kind, std::string("*")}) {
      const auto found = options.groups.find(key);
      if (found != options.groups.end()) return found->second;
    }
    return {};
  }

  /// The communicator of all ranks; the first call makes it.
  NcclConnection& world(Store& store);
  std::vector<NcclUniqueId> agree_on_ids(Store& store) const;
  NcclResult init(NcclComm* comm, std::vector<NcclUniqueId>& ids, NcclConfig* config) const;

  Options options;
  std::shared_ptr<const NcclApi> api;
  std::shared_ptr<NcclProcess> process;  // shared with the connections
  std::unique_ptr<NcclConnection> all;
};

std::vector<NcclUniqueId> NcclEndpoint::Impl::agree_on_ids(Store& store) const {
  const int ranks = options.world_size;
  const int count = (ranks + options.ranks_per_id - 1) / options.ranks_per_id;
  if (count > 1 && api->init_rank_scalable == nullptr) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("{}: NCCL {} takes one id for all of {} ranks, 2.23 takes several",
                            api->path, api->version_text(), ranks));
  }
  std::vector<NcclUniqueId> ids(static_cast<std::size_t>(count));
  for (int id = 0; id < count; ++id) {
    if (first_rank_of_id(id, count, ranks) != options.rank) continue;
    NcclUniqueId own{};
    if (const NcclResult result = api->get_unique_id(&own); result != NcclResult::Success) {
      process->fail(fmt::format("world: unique id: {}", api->get_error_string(result)));
    }
    store.set(id_key(id), std::string(own.internal, sizeof(own.internal)));
  }
  for (int id = 0; id < count; ++id) {
    const std::string text = store.get(id_key(id));
    auto& internal = ids[static_cast<std::size_t>(id)].internal;
    FORESAIL_EXPECT(text.size() == sizeof(internal));
    std::ranges::copy(text, internal);
  }
  return ids;
}

NcclResult NcclEndpoint::Impl::init(NcclComm* comm, std::vector<NcclUniqueId>& ids,
                                    NcclConfig* config) const {
  if (ids.size() == 1) {
    return api->init_rank_config(comm, options.world_size, ids.front(), options.rank, config);
  }
  return api->init_rank_scalable(comm, options.world_size, options.rank,
                                 static_cast<int>(ids.size()), ids.data(), config);
}

NcclConnection& NcclEndpoint::Impl::world(Store& store) {
  if (all != nullptr) {
    FORESAIL_EXPECT(process->options().store == &store);
    return *all;
  }
  NcclProcess::Options shared;
  shared.api = api;
  shared.streams = options.streams;
  shared.store = &store;
  shared.rank = options.rank;
  shared.timeout = options.timeout;
  shared.flag_interval =
      std::max(options.flag_interval,
               std::chrono::milliseconds(1000 * options.world_size / kLooksPerSecond));
  process = std::make_shared<NcclProcess>(shared);
  std::vector<NcclUniqueId> ids = agree_on_ids(store);
  auto made = std::make_unique<NcclConnection>(process, "world");
  const NcclGroupOptions own = group_options("world");
  NcclConfig config = make_nccl_config(made->name(), own);
  options.streams->current();  // NCCL takes the device that is current
  made->open([&](NcclComm* comm) { return init(comm, ids, &config); });
  all = std::move(made);
  return *all;
}

NcclEndpoint::NcclEndpoint(const Options& options) {
  FORESAIL_EXPECT(options.streams != nullptr);
  FORESAIL_EXPECT(options.ranks_per_id > 0);
  FORESAIL_EXPECT(options.rank >= 0);
  FORESAIL_EXPECT(options.rank < options.world_size);
  impl_ = std::make_unique<Impl>(options);
}

NcclEndpoint::~NcclEndpoint() = default;

std::unique_ptr<Communicator> NcclEndpoint::connect(const Group& group, Store& store) const {
  NcclConnection& world = impl_->world(store);
  if (group.size == 1) {
    world.split(kNcclNoColor, 0, nullptr, nullptr);
    return make_local_communicator(group.name);
  }
  NcclMember member;
  member.options = impl_->group_options(group.kind);
  member.registration = impl_->options.registration;
  auto made = std::make_unique<NcclConnection>(impl_->process, group.name);
  NcclConfig config = make_nccl_config(made->name(), member.options);
  world.split(group.color, group.rank, made.get(), &config);
  made->ask("count", [&](NcclComm comm) { return impl_->api->count(comm, &member.size); });
  made->ask("rank", [&](NcclComm comm) { return impl_->api->user_rank(comm, &member.rank); });
  if (member.size != group.size || member.rank != group.rank) {
    impl_->process->fail(
        fmt::format("{}: NCCL made rank {} of {}, the plan says {} of {}: ranks "
                    "connect their groups in different orders",
                    group.name, member.rank, member.size, group.rank, group.size));
  }
  member.connection = std::move(made);
  return make_nccl_communicator(std::move(member));
}

void NcclEndpoint::stand_by(const std::string&, Store& store) const {
  impl_->world(store).split(kNcclNoColor, 0, nullptr, nullptr);
}

void NcclEndpoint::check() const {
  if (impl_->process != nullptr) impl_->process->check();
}

void NcclEndpoint::report_failure(const std::string& reason) const {
  if (impl_->process != nullptr) impl_->process->stop(reason);
}

std::string describe_nccl() {
  const auto api = load_nccl(default_nccl_library());
  return fmt::format("{}: {}", api->path, api->version_text());
}

}  // namespace foresail::runtime
