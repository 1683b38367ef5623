/// \file
/// Clusters from text, for the tests of this folder.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "foresail/topologies/cluster.h"

namespace foresail::topologies {

inline std::filesystem::path catalogue_folder() {
  return std::filesystem::path(FORESAIL_SOURCE_DIR) / "topologies" / "catalogue";
}

inline Cluster::Options resolve_text(std::string_view text) {
  return resolve_cluster(Yaml::parse(text, "test.yaml"), {catalogue_folder()});
}

inline Cluster cluster_of(std::string_view text) {
  return Cluster(resolve_text(text));
}

inline std::vector<std::string> catalogue_names(std::string_view shelf) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(catalogue_folder() / shelf)) {
    names.push_back(entry.path().stem().string());
  }
  return names;
}

inline DeviceId device_id(int index) {
  return DeviceId{static_cast<std::uint32_t>(index)};
}

}  // namespace foresail::topologies
