// Tokens in Megatron-LM's indexed format: what is read, in which order, and what is refused.
// FORESAIL_FUZZ_ROUNDS sets the number of damaged indices.
#include "foresail/runtime/token_data.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "../base/mutate.h"
#include "foresail/base/error.h"
#include "fuzz_rounds.h"
#include "scratch_folder.h"
#include "shuffle.h"
#include "token_files.h"

namespace foresail::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Tokens : public ::testing::Test {
 protected:
  SampleOptions options(std::int64_t sequence_length, std::int64_t vocab = 1000) const {
    return {.path = folder_ / "corpus",
            .sequence_length = sequence_length,
            .seed = 3,
            .vocab = vocab,
            .split = {}};
  }
  template <class T>
  void write(const testing::TokenFiles<T>& files) {
    files.write(folder_ / "corpus");
  }
  /// What the data are refused with.
  static std::string refusal(const SampleOptions& options) {
    try {
      const TokenData data(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
      return error.what();
    }
    return "accepted";
  }
  static std::vector<std::int32_t> sample(const SampleSource& data, std::int64_t index,
                                          std::int64_t sequence_length) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(sequence_length + 1));
    data.read(index, tokens);
    return tokens;
  }

  const fs::path folder_ = test::scratch_folder();
};

TEST_F(Tokens, AnEpochShowsEveryTokenOfTheJoinedDocumentsOnceAsATarget) {
  // Tokens 0 ... 20 in documents of 6, 0, 8 and 7; S = 4: (21 - 1) / 4 = 5 samples, nothing over.
  testing::TokenFiles<std::uint16_t> files{8, {}};
  std::uint16_t next = 0;
  for (const int length : {6, 0, 8, 7}) {
    auto& document = files.documents.emplace_back();
    for (int i = 0; i < length; ++i) document.push_back(next++);
  }
  write(files);
  const TokenData data(options(4));
  EXPECT_EQ(data.tokens(), 21);
  ASSERT_EQ(data.samples_per_epoch(), 5);
  for (std::int64_t epoch = 0; epoch < 8; ++epoch) {
    std::multiset<std::int32_t> targets;
    std::map<std::int32_t, std::int32_t> follower;
    for (std::int64_t i = 0; i < 5; ++i) {
      const auto tokens = sample(data, 5 * epoch + i, 4);
      targets.insert(tokens.begin() + 1, tokens.end());
      for (std::size_t k = 0; k < 4; ++k) follower[tokens[k]] = tokens[k + 1];
    }
    // 20 different targets; the one token that is none starts the epoch, hence a document.
    std::vector<std::int32_t> missing;
    for (std::int32_t token = 0; token <= 20; ++token) {
      if (!targets.contains(token)) missing.push_back(token);
    }
    EXPECT_THAT(missing, ::testing::ElementsAre(::testing::AnyOf(0, 6, 14)));
    // Within a document tokens keep their order.
    for (const auto& [token, after] : follower) {
      const bool ends_document = token == 5 || token == 13 || token == 20;
      EXPECT_TRUE(ends_document || after == token + 1) << token << " " << after;
    }
  }
}

TEST_F(Tokens, OrdersDifferByEpochAndSeedButNotByWhatWasReadBefore) {
  write(testing::numbered_documents(50, 40, 997));
  const TokenData first(options(8)), second(options(8));
  SampleOptions other = options(8);
  other.seed = 4;
  const TokenData seeded(other);
  const std::int64_t n = first.samples_per_epoch();
  sample(second, 3 * n, 8);
  int equal_by_epoch = 0, equal_by_seed = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto tokens = sample(first, i, 8);
    EXPECT_EQ(tokens, sample(second, i, 8));
    equal_by_epoch += tokens == sample(second, i + n, 8) ? 1 : 0;
    equal_by_seed += tokens == sample(seeded, i, 8) ? 1 : 0;
  }
  EXPECT_LT(equal_by_epoch, n / 10);
  EXPECT_LT(equal_by_seed, n / 10);
}

TEST_F(Tokens, EveryIntegerTypeIsRead) {
  const auto check = [&](auto zero, std::uint8_t code) {
    using T = decltype(zero);
    write(testing::TokenFiles<T>{code, {{T{5}, T{0}, T{127}}}});
    EXPECT_EQ(sample(TokenData(options(2)), 0, 2), (std::vector<std::int32_t>{5, 0, 127}));
  };
  check(std::uint8_t{}, 1);
  check(std::int8_t{}, 2);
  check(std::int16_t{}, 3);
  check(std::int32_t{}, 4);
  check(std::int64_t{}, 5);
  check(std::uint16_t{}, 8);
}

TEST_F(Tokens, DocumentsOfSeveralSequencesStayTogether) {
  // One document of the sequences (1 2)(3), another of (4 5 6).
  using testing::raw;
  write(testing::TokenFiles<std::uint8_t>{1, {{1, 2}, {3}, {4, 5, 6}}});
  std::string index = read_file(folder_ / "corpus.idx");
  index.replace(26, 8, raw(std::int64_t{3}));
  index.replace(index.size() - 32, 32,
                raw(std::int64_t{0}) + raw(std::int64_t{2}) + raw(std::int64_t{3}));
  write_file(folder_ / "corpus.idx", index);
  const TokenData data(options(5));
  EXPECT_EQ(data.documents(), 2);
  for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
    EXPECT_THAT(sample(data, epoch, 5), ::testing::AnyOf(::testing::ElementsAre(1, 2, 3, 4, 5, 6),
                                                         ::testing::ElementsAre(4, 5, 6, 1, 2, 3)));
  }
}

TEST_F(Tokens, TheSplitsFirstShareOfTheDocumentsIsTrainedOn) {
  // Documents 0 ... 9 of 20 tokens each, all the document's number. 8 : 1 : 1 trains on 0 ... 7.
  testing::TokenFiles<std::uint8_t> files{1, {}};
  for (std::uint8_t i = 0; i < 10; ++i) files.documents.push_back(std::vector<std::uint8_t>(20, i));
  write(files);
  SampleOptions split = options(4);
  split.split = {8, 1, 1};
  const TokenData data(split);
  EXPECT_EQ(data.documents(), 8);
  std::set<std::int32_t> seen;
  for (std::int64_t i = 0; i < data.samples_per_epoch(); ++i) {
    for (const std::int32_t token : sample(data, i, 4)) seen.insert(token);
  }
  EXPECT_THAT(seen, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(Tokens, TooFewOfThemAreAnErrorWithTheNumbers) {
  write(testing::TokenFiles<std::uint8_t>{1, {{1, 2}, {3}}});
  EXPECT_EQ(refusal(options(3)), (folder_ / "corpus.bin").string() +
                                     ": 3 tokens in the 2 documents to train on, but one sample "
                                     "of sequence_length 3 needs 4");
}

TEST_F(Tokens, OneBeyondTheVocabularyIsAnErrorThatNamesIt) {
  write(testing::TokenFiles<std::uint16_t>{8, {{1, 2, 3}, {4, 300, 5}}});
  const TokenData data(options(5, 300));
  try {
    sample(data, 0, 5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), (folder_ / "corpus.bin").string() +
                                             ": document 1: token 300, but model.vocab is 300");
  }
}

TEST_F(Tokens, WhatIsWrongWithAnIndexIsSaid) {
  using testing::raw;
  const testing::TokenFiles<std::uint16_t> files{8, {{1, 2, 3}, {4, 5}}};
  write(files);
  const std::string good = files.idx();
  ASSERT_EQ(good.size(), 34u + 2 * 4 + 2 * 8 + 3 * 8);
  const auto with = [&](std::size_t at, const std::string& bytes) {
    std::string bad = good;
    write_file(folder_ / "corpus.idx", bad.replace(at, bytes.size(), bytes));
    return refusal(options(2));
  };
  const std::string where = (folder_ / "corpus.idx").string();
  EXPECT_THAT(with(0, "TNTIDX\0\0"), HasSubstr(where + ": does not start with MMIDIDX"));
  EXPECT_THAT(with(9, raw(std::uint64_t{2})), HasSubstr("version 2 of the format"));
  EXPECT_THAT(with(17, "\x07"), HasSubstr("token type 7, but only 1 to 5 and 8 are integers"));
  EXPECT_THAT(with(18, raw(std::uint64_t{3})), HasSubstr("82 bytes do not hold the 3 sequences"));
  EXPECT_THAT(with(18, raw(~std::uint64_t{0})), HasSubstr("18446744073709551615 sequences"));
  EXPECT_THAT(with(26, raw(std::uint64_t{1} << 61)), HasSubstr("2305843009213693952 document"));
  EXPECT_THAT(with(34, raw(std::int32_t{-1})), HasSubstr("sequence 0: -1 tokens"));
  EXPECT_THAT(with(38, raw(std::int32_t{3})),
              HasSubstr("sequence 1: 3 tokens of 2 bytes at byte 6 are not within the 10 bytes"));
  EXPECT_THAT(with(42, raw(std::int64_t{-8})), HasSubstr("at byte -8"));
  EXPECT_THAT(with(58, raw(std::int64_t{1})), HasSubstr("document 0 starts at sequence 1"));
  EXPECT_THAT(with(66, raw(std::int64_t{9})),
              HasSubstr("document 1 starts at sequence 9 and ends"));
  EXPECT_THAT(with(74, raw(std::int64_t{1})),
              HasSubstr("the last document ends at sequence 1 of 2"));
  write_file(folder_ / "corpus.idx", good.substr(0, 33));
  EXPECT_THAT(refusal(options(2)), HasSubstr("33 bytes, but the header of an index has 34"));
  write_file(folder_ / "corpus.idx", good + std::string(2, '\0'));
  EXPECT_THAT(refusal(options(2)), HasSubstr("multimodal"));
  write_file(folder_ / "corpus.idx", good);
  write_file(folder_ / "corpus.bin", "123456789");
  EXPECT_THAT(refusal(options(2)), HasSubstr("are not within the 9 bytes"));
}

TEST_F(Tokens, ADamagedIndexIsReadWholeOrRefusedOnce) {
  const testing::TokenFiles<std::uint16_t> files = testing::numbered_documents(6, 9, 50);
  write(files);
  const std::vector<std::string> pieces = {testing::raw(std::int64_t{-1}), testing::raw(INT64_MAX),
                                           testing::raw(std::int64_t{1} << 40),
                                           testing::raw(INT32_MIN), std::string("MMIDIDX\0\0", 9)};
  RandomStream random = Rng(11).stream("damage");
  int accepted = 0;
  for (int round = 0; round < test::fuzz_rounds(3000); ++round) {
    write_file(folder_ / "corpus.idx", test::mutate(files.idx(), pieces, 16, random));
    try {
      const TokenData data(options(3));
      ++accepted;
      const std::int64_t count = std::min<std::int64_t>(data.samples_per_epoch(), 20);
      for (std::int64_t i = 0; i < count; ++i) sample(data, i, 3);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("corpus.")) << "round " << round;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, test::fuzz_rounds(3000));
}

TEST_F(Tokens, AreFoundByPrefixOrByEitherFile) {
  write(testing::numbered_documents(9, 30, 200));
  for (const char* name : {"corpus", "corpus.bin", "corpus.idx"}) {
    SampleOptions named = options(4);
    named.path = folder_ / name;
    EXPECT_EQ(sample(*open_samples(named), 7, 4), sample(TokenData(options(4)), 7, 4)) << name;
  }
  fs::remove(folder_ / "corpus.bin");
  SampleOptions gone = options(4);
  EXPECT_THROW(open_samples(gone), Error);
  gone.path = folder_ / "other";
  try {
    open_samples(gone);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotFound);
    EXPECT_EQ(
        std::string(error.what()),
        (folder_ / "other").string() + ": no such file or folder, and no other.idx with tokens");
  }
}

TEST_F(Tokens, TextNeedsARowForEveryByteAndHasNoDocuments) {
  write_file(folder_ / "text", std::string(100, 'x'));
  SampleOptions text = options(4, 255);
  text.path = folder_ / "text";
  EXPECT_THROW(open_samples(text), Error);
  text.vocab = 256;
  EXPECT_EQ(open_samples(text)->samples_per_epoch(), 20);
  text.split = {1, 1};
  EXPECT_THROW(open_samples(text), Error);
}

TEST(ShuffledPlace, IsAPermutationOfEveryCount) {
  for (std::int64_t count = 1; count < 300; ++count) {
    std::set<std::int64_t> places;
    for (std::int64_t i = 0; i < count; ++i) places.insert(shuffled_place(i, count, 5));
    EXPECT_EQ(places.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(*places.rbegin(), count - 1);
  }
}

TEST(ShuffledPlace, PutsAPlaceAnywhereAsOften) {
  // 20 places, 8000 keys: 400 each, and 5 standard deviations are 97. The same for neighbours'
  // distance, which a shift alone would keep.
  std::map<std::int64_t, int> places, distances;
  for (std::uint64_t key = 0; key < 8000; ++key) {
    const std::int64_t first = shuffled_place(0, 20, mix64(key));
    ++places[first];
    ++distances[(shuffled_place(1, 20, mix64(key)) - first + 20) % 20];
  }
  for (const auto& [place, count] : places) EXPECT_NEAR(count, 400, 97) << place;
  EXPECT_EQ(distances.size(), 19u);
  for (const auto& [distance, count] : distances) EXPECT_NEAR(count, 421, 100) << distance;
}

}  // namespace
}  // namespace foresail::runtime
