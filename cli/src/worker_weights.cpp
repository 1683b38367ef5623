#include "worker_weights.h"

#include "foresail/base/document.h"
#include "foresail/runtime/weights.h"

namespace foresail::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "model.safetensors";

}  // namespace

fs::path weights_file(const fs::path& path) {
  return fs::is_directory(path) ? path / kFile : path;
}

fs::path unfinished_weights(const fs::path& folder) {
  return folder / (std::string(kFile) + ".part");
}

void save_weights(const fs::path& folder, const runtime::Job& job, runtime::Trainer& trainer,
                  const RankEnvironment& environment, runtime::Store& store) {
  const fs::path part = unfinished_weights(folder);
  const std::int64_t positions = job.training.sequence_length;
  if (environment.rank == 0) {
    fs::create_directories(folder);
    runtime::create_weights(part, job.model, positions);
    store.set("weights/made", "");
  }
  store.get("weights/made");
  trainer.write_weights(part);
  const auto key = [](int rank) { return "weights/written/" + std::to_string(rank); };
  store.set(key(environment.rank), "");
  if (environment.rank != 0) {
    store.get("weights/whole");
    return;
  }
  for (int rank = 0; rank < environment.world_size; ++rank) store.get(key(rank));
  write_file(folder / "config.json",
             runtime::hugging_face_config(job.model, positions).dump(2) + '\n');
  fs::rename(part, folder / kFile);
  store.set("weights/whole", "");
}

}  // namespace foresail::cli
