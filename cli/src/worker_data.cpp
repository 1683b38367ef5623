#include "worker_data.h"

#include <algorithm>
#include <map>
#include <vector>

#include "foresail/base/document.h"
#include "foresail/base/error.h"

namespace foresail::cli {
namespace {

std::string reader_key(RankId rank) {
  return "data/reader/" + std::to_string(rank.value);
}

/// Every rank's host; rank 0 collects them, so that a rank asks once.
Document all_hosts(const RankEnvironment& environment, const std::string& host,
                   runtime::Store& store) {
  const auto key = [](int rank) { return "data/host/" + std::to_string(rank); };
  store.set(key(environment.rank), host);
  if (environment.rank == 0) {
    Document hosts = Document::array();
    for (int rank = 0; rank < environment.world_size; ++rank) hosts.push_back(store.get(key(rank)));
    store.set("data/hosts", hosts.dump());
  }
  return parse_json(store.get("data/hosts"), "data/hosts");
}

/// Of every host, the ranks that load batches.
std::vector<std::vector<RankId>> loaders(const runtime::Job& job, const Document& hosts) {
  std::map<std::string, std::vector<RankId>> by_host;
  for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) {
    if (!runtime::loads_batches(job.program, RankId{rank})) continue;
    by_host[hosts[rank].get<std::string>()].push_back(RankId{rank});
  }
  std::vector<std::vector<RankId>> all;
  for (auto& [host, ranks] : by_host) all.push_back(std::move(ranks));
  return all;
}

std::string failure_text(const Error& error) {
  return Document{{"code", static_cast<int>(error.code())}, {"message", error.what()}}.dump();
}

/// Opens the data on a reader and says what came of it.
std::unique_ptr<runtime::NodeBatches> serve(const DataOptions& options,
                                            const runtime::NodeBatches::Options& node,
                                            runtime::Store& store) {
  const runtime::Job& job = *options.job;
  try {
    auto samples = runtime::open_samples({.path = options.path,
                                          .sequence_length = job.training.sequence_length,
                                          .seed = job.seed,
                                          .vocab = job.model.vocab,
                                          .split = job.training.data_split});
    auto batches = runtime::NodeBatches::serve(node, std::move(samples));
    store.set(reader_key(node.rank), Document{{"handle", batches->handle()}}.dump());
    return batches;
  } catch (const Error& error) {
    store.set(reader_key(node.rank), failure_text(error));
    return nullptr;
  }
}

/// The first failure of a reader; or empty.
Document verdict(const RankEnvironment& environment, const std::vector<std::vector<RankId>>& nodes,
                 runtime::Store& store) {
  if (environment.rank == 0) {
    Document first = Document::object();
    for (const std::vector<RankId>& ranks : nodes) {
      const Document said = parse_json(store.get(reader_key(ranks.front())), "data/reader");
      if (first.empty() && said.contains("code")) first = said;
    }
    store.set("data/verdict", first.dump());
  }
  return parse_json(store.get("data/verdict"), "data/verdict");
}

}  // namespace

std::unique_ptr<runtime::NodeBatches> open_data(const DataOptions& options,
                                                const RankEnvironment& environment,
                                                runtime::Store& store) {
  const RankId self{static_cast<std::uint32_t>(environment.rank)};
  const auto nodes = loaders(*options.job, all_hosts(environment, options.host, store));
  runtime::NodeBatches::Options node{
      .job = options.job, .rank = self, .ranks = {}, .steps = options.steps};
  for (const std::vector<RankId>& ranks : nodes) {
    if (std::ranges::find(ranks, self) != ranks.end()) node.ranks = ranks;
  }
  std::unique_ptr<runtime::NodeBatches> batches;
  const bool is_reader = !node.ranks.empty() && node.ranks.front() == self;
  if (is_reader) batches = serve(options, node, store);
  const Document failure = verdict(environment, nodes, store);
  if (!failure.empty()) {
    throw Error(static_cast<ErrorCode>(failure.at("code").get<int>()),
                failure.at("message").get<std::string>());
  }
  if (is_reader || node.ranks.empty()) return batches;
  const Document reader = parse_json(store.get(reader_key(node.ranks.front())), "data/reader");
  return runtime::NodeBatches::attach(node, reader.at("handle").get<std::string>());
}

}  // namespace foresail::cli
