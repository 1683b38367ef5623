#include "foresail/program/profile.h"

#include <fmt/format.h>

#include <limits>

#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/base/yaml.h"

namespace foresail::program {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

/// Microseconds with as many digits as the picoseconds need: "12.345678 us".
std::string exact_text(Duration time) {
  constexpr std::int64_t kPicosecondsPerMicrosecond = 1'000'000;
  FORESAIL_EXPECT(time.count() >= 0);
  const std::int64_t whole = time.count() / kPicosecondsPerMicrosecond;
  std::string fraction = fmt::format("{:06}", time.count() % kPicosecondsPerMicrosecond);
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return fraction.empty() ? fmt::format("{} us", whole) : fmt::format("{}.{} us", whole, fraction);
}

std::string exact_text(Bytes bytes) {
  return fmt::format("{} B", bytes.count());
}

struct ShapeKey {
  std::string_view key;
  std::int64_t Kernel::*value;
};
constexpr ShapeKey kShape[] = {{"batch", &Kernel::batch},
                               {"m", &Kernel::m},
                               {"n", &Kernel::n},
                               {"k", &Kernel::k},
                               {"heads", &Kernel::heads},
                               {"query_length", &Kernel::query_length},
                               {"key_length", &Kernel::key_length},
                               {"head_size", &Kernel::head_size}};

Document to_document(const KernelTiming& timing) {
  const Kernel usual;
  const Kernel& kernel = timing.kernel;
  Document document = {{"kind", to_string(kernel.kind)},
                       {"dtype", to_string(kernel.dtype)},
                       {"flops", kernel.flops.count()},
                       {"bytes", exact_text(kernel.bytes)},
                       {"time", exact_text(timing.time)}};
  for (const auto& [key, value] : kShape) {
    if (kernel.*value != usual.*value) document[std::string(key)] = kernel.*value;
  }
  if (kernel.is_backward) document["is_backward"] = true;
  return document;
}

Document to_document(const TransferTiming& timing) {
  return {{"kind", timing.kind},
          {"ranks", timing.ranks},
          {"bytes", exact_text(timing.bytes)},
          {"time", exact_text(timing.time)}};
}

KernelTiming read_kernel(const Yaml& node) {
  node.allow_only({"kind", "dtype", "flops", "bytes", "time", "batch", "m", "n", "k", "heads",
                   "query_length", "key_length", "head_size", "is_backward"});
  KernelTiming timing;
  Kernel& kernel = timing.kernel;
  kernel.kind = node.at("kind").as_choice<KernelKind>();
  kernel.dtype = node.at("dtype").as_choice<DType>();
  const Yaml flops = node.at("flops");
  kernel.flops = Flops(flops.as_number());
  if (kernel.flops < Flops{}) flops.fail("must not be below 0");
  kernel.bytes = node.at("bytes").as_bytes();
  for (const auto& [key, value] : kShape) {
    if (const auto found = node.find(key)) kernel.*value = found->as_integer(0, kMax);
  }
  if (const auto found = node.find("is_backward")) kernel.is_backward = found->as_bool();
  timing.time = node.at("time").as_duration();
  return timing;
}

TransferTiming read_transfer(const Yaml& node) {
  node.allow_only({"kind", "ranks", "bytes", "time"});
  TransferTiming timing;
  const Yaml kind = node.at("kind");
  timing.kind = kind.as_string();
  if (timing.kind != "send" && !from_string<Collective>(timing.kind)) {
    kind.fail(fmt::format("\"{}\" is not one of send, {}", timing.kind, choices<Collective>()));
  }
  timing.ranks = static_cast<int>(node.at("ranks").as_integer(2, 1 << 20));
  timing.bytes = node.at("bytes").as_bytes();
  timing.time = node.at("time").as_duration();
  return timing;
}

}  // namespace

Profile load_profile(const std::filesystem::path& path) {
  const Yaml root = Yaml::load(path);
  root.allow_only({"foresail_profile", "host", "date", "cores", "processes", "blas", "kernels",
                   "transfers", "op_overhead", "step_overhead", "device", "launch_overhead"});
  root.at("foresail_profile").as_integer(1, 1);
  Profile profile;
  profile.host = root.at("host").as_string();
  profile.date = root.at("date").as_string();
  profile.cores = static_cast<int>(root.at("cores").as_integer(1, 1 << 20));
  profile.processes = static_cast<int>(root.at("processes").as_integer(1, 1 << 20));
  profile.blas = root.at("blas").as_string();
  for (const Yaml& node : root.at("kernels").items()) profile.kernels.push_back(read_kernel(node));
  for (const Yaml& node : root.at("transfers").items()) {
    profile.transfers.push_back(read_transfer(node));
  }
  profile.op_overhead = root.at("op_overhead").as_duration();
  profile.step_overhead = root.at("step_overhead").as_duration();
  if (const auto found = root.find("device")) profile.device = found->as_string();
  if (const auto found = root.find("launch_overhead")) {
    profile.launch_overhead = found->as_duration();
  }
  return profile;
}

void save_profile(const Profile& profile, const std::filesystem::path& path) {
  Document kernels = Document::array();
  for (const KernelTiming& timing : profile.kernels) kernels.push_back(to_document(timing));
  Document transfers = Document::array();
  for (const TransferTiming& timing : profile.transfers) transfers.push_back(to_document(timing));
  Document document = {{"foresail_profile", 1},
                       {"host", profile.host},
                       {"date", profile.date},
                       {"cores", profile.cores},
                       {"processes", profile.processes},
                       {"blas", profile.blas},
                       {"kernels", std::move(kernels)},
                       {"transfers", std::move(transfers)},
                       {"op_overhead", exact_text(profile.op_overhead)},
                       {"step_overhead", exact_text(profile.step_overhead)}};
  if (!profile.device.empty()) {
    document["device"] = profile.device;
    document["launch_overhead"] = exact_text(profile.launch_overhead);
  }
  write_file(path, to_yaml(document));
}

}  // namespace foresail::program
