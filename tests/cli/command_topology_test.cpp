// foresail topology import, show, check and export, as a user meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "foresail/base/document.h"
#include "run_command.h"

namespace foresail {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using test::Outcome;

/// A folder that goes with the test.
class CommandTopology : public ::testing::Test {
 protected:
  CommandTopology()
      : folder_(fs::path(::testing::TempDir()) /
                ("command_topology_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~CommandTopology() override { fs::remove_all(folder_); }

  fs::path scratch(const std::string& name) const { return folder_ / name; }
  static std::string data(const std::string& name) {
    return (fs::path(FORESAIL_SOURCE_DIR) / "tests/topologies/data" / name).string();
  }
  Outcome run(const std::string& arguments) const {
    return test::run_command(arguments, scratch("stderr.txt"));
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(scratch(name)) << text;
    return scratch(name).string();
  }

 private:
  fs::path folder_;
};

TEST_F(CommandTopology, ImportsEveryFormatAndShowsTheResult) {
  for (const std::string& name :
       {std::string("ibnetdiscover.txt"), std::string("nccl_hgx.xml"),
        std::string("astra_sim_analytical.yml"), std::string("astra_sim_ring.txt"),
        std::string("astra_sim_star.txt"), std::string("simai.txt")}) {
    const std::string file = scratch(name + ".yaml").string();
    const Outcome imported = run("topology import --device h100 -o " + file + " " + data(name));
    ASSERT_EQ(imported.status, 0) << name << imported.error;
    EXPECT_THAT(imported.out, HasSubstr("written to " + file));
    EXPECT_THAT(read_file(file), StartsWith("# Imported from " + name + ".\n"));
    const Outcome shown = run("topology show --json " + file);
    ASSERT_EQ(shown.status, 0) << name << shown.error;
    EXPECT_EQ(Document::parse(shown.out).at("device"), "h100");
  }
}

TEST_F(CommandTopology, WhatWasImportedCanBeSimulated) {
  ASSERT_EQ(
      run("topology import -o " + scratch("mine.yaml").string() + " " + data("simai.txt")).status,
      0);
  const std::string scenario =
      write("scenario.yaml",
            "foresail: 1\nmodel: gpt_tiny\ncluster: ./mine.yaml\nlayout: {tp: 2, dp: 2, pp: 1}\n"
            "training: {global_batch_size: 8, sequence_length: 128}\n");
  const Outcome outcome = run("simulate --json " + scenario);
  ASSERT_EQ(outcome.status, 0) << outcome.error;
  EXPECT_GT(Document::parse(outcome.out).at("iteration_time_s").get<double>(), 0);
}

TEST_F(CommandTopology, ImportSaysWhatItAssumed) {
  const std::string file = scratch("c.yaml").string();
  const Outcome told =
      run("topology import --json --device h100 --gpus-per-node 8 --name mine -o " + file + " " +
          data("ibnetdiscover.txt"));
  ASSERT_EQ(told.status, 0) << told.error;
  EXPECT_THAT(told.error, HasSubstr("1 aggregation nodes (SHARP) inside switches; left out"));
  const Document document = Document::parse(told.out);
  EXPECT_EQ(document.at("name"), "mine");
  EXPECT_EQ(document.at("devices"), 32);
  EXPECT_EQ(document.at("nodes").at(3), "gpu10");
  const std::string text = read_file(file);
  EXPECT_THAT(text, HasSubstr("# node3: gpu10\n"));
  EXPECT_THAT(text, HasSubstr("# 1 of 12 NICs do not have the most common bandwidth"));
  EXPECT_EQ(run("topology import --quiet --device h100 -o " + file + " " + data("simai.txt")).error,
            "");
}

TEST_F(CommandTopology, ImportRefusesWithoutWriting) {
  const std::string file = scratch("none.yaml").string();
  const Outcome no_device = run("topology import -o " + file + " " + data("ibnetdiscover.txt"));
  EXPECT_EQ(no_device.status, 2);
  EXPECT_THAT(no_device.error, HasSubstr("does not say which GPU the nodes have"));
  const std::string broken = write("broken.txt", "Switch\t2 \"S-1\"\n[1] nothing\n");
  const Outcome wrong = run("topology import --device h100 -o " + file + " " + broken);
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.error, HasSubstr("broken.txt:2: expected"));
  EXPECT_EQ(run("topology import --device h9 -o " + file + " " + data("simai.txt")).status, 2);
  EXPECT_EQ(run("topology import --format csv -o " + file + " " + data("simai.txt")).status, 2);
  EXPECT_EQ(run("topology import --format nccl -o " + file + " " + data("simai.txt")).status, 2);
  EXPECT_EQ(run("topology import -o " + file + " /no/such/file").status, 2);
  EXPECT_EQ(run("topology show " + data("simai.txt")).status, 2);
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(CommandTopology, CheckIsStatusZeroWhenCleanAndThreeWhenNot) {
  const Outcome clean = run("topology check megascale --gpus 1024");
  EXPECT_EQ(clean.status, 0) << clean.error;
  EXPECT_EQ(clean.out, "megascale: nothing is wired wrongly\n");
  const std::string file = scratch("slow.yaml").string();
  ASSERT_EQ(
      run("topology import --device h100 -o " + file + " " + data("ibnetdiscover.txt")).status, 0);
  const Outcome slow = run("topology check --json " + file);
  EXPECT_EQ(slow.status, 3);
  const Document document = Document::parse(slow.out);
  EXPECT_EQ(document.at("clean"), false);
  ASSERT_EQ(document.at("findings").size(), 1U) << slow.out;
  EXPECT_EQ(document.at("findings").at(0).at("kind"), "slow_link");
  EXPECT_EQ(document.at("findings").at(0).at("cable"), "node2.nic1->MF0;ib-leaf02:MQM9700/U1");
  EXPECT_EQ(document.at("findings").at(0).at("bandwidth_lost"), 0.5);
  EXPECT_EQ(run("topology check nowhere").status, 2);
}

TEST_F(CommandTopology, ExportedYamlReadsBackToTheSameGraph) {
  const std::string first = scratch("first.yaml").string();
  const std::string again = scratch("again.yaml").string();
  ASSERT_EQ(run("topology export selene --gpus 256 --format yaml -o " + first).status, 0);
  ASSERT_EQ(run("topology export --format yaml -o " + again + " " + first).status, 0);
  EXPECT_EQ(read_file(first), read_file(again));
  EXPECT_EQ(run("topology check " + first).status, 0);
}

TEST_F(CommandTopology, ExportsToStandardOutputAndRefusesOtherFormats) {
  const Outcome dot = run("topology export selene --gpus 256 --format dot");
  EXPECT_EQ(dot.status, 0);
  EXPECT_THAT(dot.out, StartsWith("graph \"selene\" {"));
  const Outcome json = run("topology export selene --gpus 256 --format json");
  EXPECT_EQ(Document::parse(json.out).at("name"), "selene");
  const Outcome wrong = run("topology export selene --format svg -o " + scratch("x.svg").string());
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.error, HasSubstr("\"svg\" is not one of yaml, dot, json"));
  EXPECT_FALSE(fs::exists(scratch("x.svg")));
  EXPECT_EQ(run("topology export host --format yaml").status, 2);
}

}  // namespace
}  // namespace foresail
