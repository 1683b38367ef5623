// Published nccl-tests tables against predictions: the errors reached are held.
#include "foresail/scenarios/collective_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "foresail/scenarios/scenario.h"

namespace foresail::scenarios {
namespace {

const std::filesystem::path kTree = FORESAIL_SOURCE_DIR;

std::vector<PublishedTable> tables() {
  return load_tables(kTree / "scenarios/catalogue/collectives.yaml",
                     kTree / "tests/data/published/collectives.yaml");
}

TEST(PublishedCollectives, BlindTablesStayWithinWhatWasReached) {
  std::vector<TableErrors> errors;
  for (const PublishedTable& table : tables()) errors.push_back(predict_table(table));
  std::printf("%s", to_text(errors).c_str());
  std::vector<double> large;
  std::vector<double> small;
  for (const TableErrors& table : errors) {
    std::vector<double> all = table.large;
    all.insert(all.end(), table.small.begin(), table.small.end());
    EXPECT_LE(mean_magnitude(all), 0.25) << table.id;
    EXPECT_LE(mean_magnitude(table.large), 0.25) << table.id;
    if (table.is_fitted) continue;
    large.insert(large.end(), table.large.begin(), table.large.end());
    small.insert(small.end(), table.small.begin(), table.small.end());
  }
  EXPECT_EQ(large.size(), 69u);
  EXPECT_LE(mean_magnitude(large), 0.15);
  EXPECT_LE(mean_magnitude(small), 0.30);
}

TEST(PublishedCollectives, TheFittedConstantsAreThoseOfTheCatalogue) {
  for (const PublishedTable& table : tables()) {
    if (!table.is_fitted) continue;
    const NcclFit fit = fit_table(table);
    EXPECT_NEAR(fit.launch_us, table.cluster.device.nccl.launch_us, 0.05) << table.id;
    EXPECT_NEAR(fit.latency_factor, table.cluster.device.nccl.latency_factor, 0.005) << table.id;
  }
}

}  // namespace
}  // namespace foresail::scenarios
