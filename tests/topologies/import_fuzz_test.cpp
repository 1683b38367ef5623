// Mutated files of every format: read, or refused with an Error; never anything else.
// FORESAIL_FUZZ_ROUNDS sets the number of inputs per format.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "../base/mutate.h"
#include "foresail/base/document.h"
#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/topologies/import.h"
#include "fuzz_rounds.h"

namespace foresail::topologies {
namespace {

const std::vector<std::string> kTokens = {"-1",       "0",         "99999999999999999999",
                                          "1e999",    "\"",        "<",
                                          ">",        "</pci>",    "<!--",
                                          "[",        "]",         "#",
                                          "\n",       "->",        "?",
                                          "4xNDR",    "\"S-1\"",   "Switch\t",
                                          "Ca ",      "0ms",       "1Gbps",
                                          "\xff",     "&",         "=",
                                          "<gpu/>\n", "topology:", "2147483647"};

class ImportFuzz : public ::testing::TestWithParam<const char*> {};

TEST_P(ImportFuzz, IsReadOrRefusedAndWhatIsReadIsAGraph) {
  const std::filesystem::path file =
      std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/topologies/data" / GetParam();
  const std::string seed = read_file(file);
  RandomStream random = Rng(2026).stream(GetParam());
  ImportOptions options;
  options.device = "h100";
  options.format = detect_format(seed);
  int refused = 0;
  const int all = test::fuzz_rounds(2000);
  for (int round = 0; round < all; ++round) {
    const std::string text = test::mutate(seed, kTokens, 80, random);
    try {
      ImportedTopology imported = import_topology(text, "fuzz", options);
      const Document document = cluster_document(imported, "fuzz", options);
      if (imported.graph.empty()) continue;
      const Yaml yaml = Yaml::parse(to_yaml(document), "round " + std::to_string(round));
      EXPECT_EQ(read_graph(yaml.at("fabric").at("graph")), imported.graph) << "round " << round;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("fuzz:")) << error.what();
      ++refused;  // anything else, a ContractViolation or a crash, fails the test
    }
  }
  EXPECT_GT(refused, all / 20);
  EXPECT_LT(refused, all);
}

INSTANTIATE_TEST_SUITE_P(Formats, ImportFuzz,
                         ::testing::Values("ibnetdiscover.txt", "nccl_hgx.xml",
                                           "astra_sim_analytical.yml", "astra_sim_star.txt",
                                           "simai.txt"));

}  // namespace
}  // namespace foresail::topologies
