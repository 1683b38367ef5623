#include "foresail/base/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"

namespace foresail {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& problem) {
    return problem.what();
  }
  return "accepted";
}

TEST(Yaml, NamesFileLineAndKey) {
  const Yaml root = Yaml::parse("a: 1\nlayout:\n  tp: eight\n", "s.yaml");
  EXPECT_EQ(refusal([&] { root.at("layout").at("tp").as_integer(); }),
            "s.yaml:3: layout.tp: expected an integer, got \"eight\"");
  EXPECT_EQ(refusal([&] { root.at("layout").at("pp"); }),
            "s.yaml:2: layout: the key \"pp\" is missing");
}

TEST(Yaml, MergedMapsRememberWhereEachValueStands) {
  const Yaml base = Yaml::parse("a: {x: 1, y: 2}\nb: [1]\n", "base.yaml");
  const Yaml change = Yaml::parse("\na: {y: three}\nb: [2, 3]\nc: 4\n", "change.yaml");
  const Yaml merged = base.merged(change);
  EXPECT_EQ(merged.to_document(), change.merged(merged).to_document());
  EXPECT_EQ(merged.at("a").at("x").where(), "base.yaml:1");
  EXPECT_EQ(merged.at("b").items().size(), 2U);
  EXPECT_EQ(refusal([&] { merged.at("a").at("y").as_integer(); }),
            "change.yaml:2: a.y: expected an integer, got \"three\"");
  EXPECT_EQ(refusal([&] { merged.without({"c"}).at("c"); }),
            "base.yaml:1: the key \"c\" is missing");
  EXPECT_EQ(base.to_document(), Document::parse(R"({"a": {"x": 1, "y": 2}, "b": [1]})"));
}

TEST(Yaml, RefusesUnknownAndDoubledKeysAndSuggests) {
  const Yaml root = Yaml::parse("modle: x\n", "s.yaml");
  EXPECT_EQ(refusal([&] {
              root.allow_only({"model", "cluster"});
            }),
            "s.yaml:1: modle: unknown key; did you mean \"model\"?");
  const Yaml twice = Yaml::parse("a: 1\na: 2\n", "s.yaml");
  EXPECT_THAT(refusal([&] { twice.allow_only({"a"}); }), HasSubstr("stands twice"));
}

TEST(Yaml, QuotedNumbersAreText) {
  const Yaml root = Yaml::parse("a: \"8\"\nb: 8\n", "s.yaml");
  EXPECT_THAT(refusal([&] { root.at("a").as_integer(); }), HasSubstr("expected an integer"));
  EXPECT_EQ(root.at("b").as_integer(), 8);
  EXPECT_EQ(root.to_document(), (Document{{"a", "8"}, {"b", 8}}));
}

TEST(Yaml, RefusesBadSyntaxMissingFilesAndBombs) {
  EXPECT_THAT(refusal([] { Yaml::parse("a: [1, 2\nb: 3", "s.yaml"); }),
              HasSubstr("s.yaml:2: not valid YAML"));
  EXPECT_EQ(refusal([] { Yaml::parse("", "s.yaml").at("a"); }),
            "s.yaml:1: expected a mapping, got nothing");
  EXPECT_EQ(refusal([] { Yaml::load("/no/such/file.yaml"); }), "/no/such/file.yaml: no such file");
  EXPECT_THAT(refusal([] { Yaml::parse(std::string(100000, '['), "s.yaml"); }),
              HasSubstr("nested too deeply"));
  EXPECT_EQ(refusal([] { Yaml::parse("a: 1\nb: \"x\xff\"\n", "s.yaml"); }),
            "s.yaml:2: text that is not UTF-8");
  EXPECT_EQ(Yaml::parse("a: \u00e9\u20ac\U0001f600\n", "s.yaml").at("a").as_string(),
            "\u00e9\u20ac\U0001f600");
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += "*a" + std::to_string(i - 1) + ",";
    bomb += "]\n";
  }
  EXPECT_THAT(refusal([&] { Yaml::parse(bomb, "s.yaml"); }), HasSubstr("too large"));
}

TEST(Yaml, DocumentsSurviveTheRoundTripThroughYaml) {
  const Document document = {{"text", "1e3"},
                             {"yes", true},
                             {"none", nullptr},
                             {"real", 0.1},
                             {"list", {1, 2, 3}},
                             {"map", {{"k", "v: #"}}},
                             {"rows", {{{"a", 1}}, {{"a", 2}}}},
                             {"empty", Document::array()},
                             {"line", "two\nlines"}};
  EXPECT_EQ(Yaml::parse(to_yaml(document), "d").to_document(), document);
}

TEST(Yaml, MutatedInputIsReadOrRefusedNeverMore) {
  const std::string seed_text =
      "foresail: 1\nmodel: {layers: 4, name: \"x\"}\nlist: [1, 2 GiB, &a b, *a]\n? k\n: |\n  v\n";
  RandomStream random = Rng(11).stream("mutate");
  for (int round = 0; round < 3000; ++round) {
    std::string text = seed_text;
    for (std::uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
      const std::size_t at = random.below(text.size());
      switch (random.below(3)) {
        case 0:
          text[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          text.erase(at, 1 + random.below(5));
          break;
        default:
          text.insert(at, text.substr(random.below(text.size()), random.below(9)));
      }
      if (text.empty()) text = "a";
    }
    try {
      Yaml::parse(text, "mutated").to_document();
    } catch (const Error&) {
    }
  }
}

// What is wrong with the text, or "accepted".
std::string complaint(const std::string& text) {
  try {
    Yaml::parse(text, "f");
  } catch (const Error& problem) {
    return problem.what();
  }
  return "accepted";
}

TEST(Yaml, ASecondDocumentIsRefused) {
  const std::string refusal = ": a second YAML document; a file holds one";
  EXPECT_EQ(complaint("a: 1\n---\nb: 2\n"), "f:2" + refusal);
  EXPECT_EQ(complaint("# head\n---\na: 1\n...\n--- \nb: 2\n"), "f:5" + refusal);
  EXPECT_EQ(complaint("---\na: 1\n...\n"), "accepted");
  EXPECT_EQ(complaint("%YAML 1.2\n---\na: \"--- b\"\n"), "accepted");
  EXPECT_EQ(complaint(""), "accepted");
}

TEST(Yaml, ControlCharactersAreRefusedWithTheirLine) {
  EXPECT_EQ(complaint("a: 1\nb: \"\\e[31mred\"\n"), "f:2: text with a control character");
  EXPECT_EQ(complaint("a: \"\\0\"\n"), "f:1: text with a control character");
  EXPECT_EQ(complaint("a: \"\\x9b\"\n"), "f:1: text with a control character");
  EXPECT_EQ(complaint("\"a\\tb\": 1\n"), "f:1: a key with a control character");
  EXPECT_EQ(complaint("a: |\n  two\n  lines\nb: \"a\\tb\"\n"), "accepted");
}

}  // namespace
}  // namespace foresail
