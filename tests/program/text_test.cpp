#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "foresail/base/error.h"
#include "foresail/base/rng.h"
#include "foresail/program/program.h"
#include "programs.h"

namespace foresail::program {
namespace {

using testing::HasSubstr;

std::string complaint(std::string_view text) {
  try {
    parse_program(text, "p.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidInput);
    return error.what();
  }
  return "accepted";
}

/// Replaces the first `from`, which must be there.
std::string edited(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

const char* const kSmall =
    "foresail_program 1\n"
    "grid tp 1 cp 1 ep 1 dp 1 pp 1 order tp-cp-ep-dp-pp\n"
    "chunks 2\n"
    "microbatches 3\n"
    "memory_limit 1000\n"
    "communicator 0 world axes tp,dp,pp\n"
    "kernels 0 pass\n"
    "  gemm fc1 bf16 m 4 n 5 k 6 flops 240 bytes 148\n"
    "  collective tp.reduce bf16 collective all_reduce lane tp bytes 8 after 0\n"
    "stage 0\n"
    "  memory parameters 1 gradients 2 optimizer 3 activations 4 buffers 5\n"
    "  0 compute forward chunk 1 microbatch 2 kernels 0 lane compute\n"
    "  1 all_reduce step_scalars bytes 8 dtype fp32 communicator 0 lane dp after 0\n";

TEST(ProgramText, HasOneLinePerDeclarationKernelAndOp) {
  const Program program = parse_program(kSmall, "p.txt");
  EXPECT_EQ(program.kernel_lists.at(0).kernels.at(1).after, std::vector<int>{0});
  EXPECT_EQ(program.memory.at(0).peak(), Bytes(15));
  EXPECT_EQ(program.stages.at(0).ops[OpId{1}].after, std::vector<OpId>{OpId{0}});
  EXPECT_EQ(to_text(program), kSmall);
}

TEST(ProgramText, SkipsBlankLinesAndComments) {
  EXPECT_EQ(parse_program("# made by hand\n\n" + std::string(kSmall), "p.txt"),
            parse_program(kSmall, "p.txt"));
}

TEST(ProgramText, RoundTripsSchedules) {
  for (const int stages : {1, 2, 4}) {
    for (const Queueing queueing : {Queueing::GlobalOrder, Queueing::Blocking}) {
      const Program program = make_1f1b({.stages = stages, .microbatches = 6}, queueing);
      EXPECT_EQ(parse_program(to_text(program), "p.txt"), program);
    }
  }
}

template <class E>
E any(RandomStream& random) {
  return kNames<E>[static_cast<std::size_t>(random.below(kNames<E>.size()))].value;
}

std::string any_name(RandomStream& random) {
  std::string name;
  for (std::uint64_t i = random.below(6); i > 0; --i) {
    name += static_cast<char>(random.below(3) == 0 ? random.below(256) : 'a' + random.below(26));
  }
  return name;
}

Kernel any_kernel(RandomStream& random, int earlier) {
  Kernel kernel;
  kernel.kind = any<KernelKind>(random);
  kernel.name = any_name(random);
  kernel.dtype = any<DType>(random);
  for (std::int64_t* const number :
       {&kernel.batch, &kernel.m, &kernel.heads, &kernel.head_size, &kernel.draws}) {
    *number = static_cast<std::int64_t>(random.below(3) * random.below(1'000'000'000));
  }
  kernel.is_backward = random.below(2) == 1;
  kernel.flops = Flops(random.uniform() * 1e18);
  kernel.bytes = Bytes(static_cast<std::int64_t>(random.below(1'000'000'000'000)));
  kernel.collective = any<Collective>(random);
  kernel.lane = any<Lane>(random);
  for (int i = 0; i < earlier; ++i) {
    if (random.below(3) == 0) kernel.after.push_back(i);
  }
  return kernel;
}

/// An op with any combination of fields, also those that its kind has no use for.
Op any_op(RandomStream& random, const Program& program, std::uint32_t earlier) {
  Op op;
  op.kind = any<OpKind>(random);
  op.lane = any<Lane>(random);
  op.pass = any<Pass>(random);
  op.chunk = static_cast<int>(random.below(static_cast<std::uint64_t>(program.chunks) + 1)) - 1;
  op.microbatch =
      static_cast<int>(random.below(static_cast<std::uint64_t>(program.microbatches) + 1)) - 1;
  op.kernels = KernelListId{static_cast<std::uint32_t>(random.below(program.kernel_lists.size()))};
  op.payload = any<Payload>(random);
  const bool is_message = op.kind == OpKind::Send || op.kind == OpKind::Recv;
  const auto stages = static_cast<std::uint64_t>(program.grid.size(Axis::Pp));
  op.peer_stage = static_cast<int>(random.below(stages));
  if (!is_message && random.below(2) == 0) op.peer_stage = -1;
  op.collective = any<Collective>(random);
  op.communicator =
      CommunicatorId{static_cast<std::uint32_t>(random.below(program.communicators.size()))};
  op.bytes = Bytes(static_cast<std::int64_t>(random.below(1'000'000)));
  op.dtype = any<DType>(random);
  op.host = any<HostWork>(random);
  for (std::uint32_t i = 0; i < earlier; ++i) {
    if (random.below(4) == 0) op.after.push_back(OpId{i});
  }
  return op;
}

Program any_program(RandomStream& random) {
  Program program = make_1f1b({.stages = 1 + static_cast<int>(random.below(3))});
  program.kernel_lists.clear();
  for (int list = 0; list < 2; ++list) {
    KernelList& added = program.kernel_lists.emplace_back();
    added.name = any_name(random);
    for (int i = 0; i < 4; ++i) added.kernels.push_back(any_kernel(random, i));
  }
  program.communicators.push_back({any_name(random), {}, {}});
  if (random.below(2) == 0) program.memory.clear();
  for (StageProgram& stage : program.stages) {
    stage.ops = {};
    for (std::uint32_t i = 0; i < 10; ++i) stage.ops.push_back(any_op(random, program, i));
  }
  return program;
}

TEST(ProgramText, RoundTripsEveryCombinationOfFields) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random = Rng(seed).stream("program");
    const Program program = any_program(random);
    const std::string text = to_text(program);
    const Program read = parse_program(text, "p.txt");
    EXPECT_EQ(read, program);
    EXPECT_EQ(to_text(read), text);
  }
}

/// Deletes, doubles, flips or replaces a few pieces of `text`.
std::string mutated(std::string text, RandomStream& random) {
  static const std::vector<std::string> kPieces = {"-1",
                                                   "99999999999999999999",
                                                   "1e400",
                                                   "\"",
                                                   "\\x",
                                                   "\n",
                                                   "after 4294967295",
                                                   " ",
                                                   "stage 0",
                                                   "nan",
                                                   "#",
                                                   "kernels 0 a",
                                                   "memory",
                                                   std::string(1, '\0'),
                                                   "pp 2147483647"};
  for (std::uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const std::size_t at = static_cast<std::size_t>(random.below(text.size()));
    const std::size_t length = static_cast<std::size_t>(random.below(12));
    switch (random.below(4)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, text.substr(at / 2, length * 8));
        break;
      case 2:
        text[at] = static_cast<char>(random.below(256));
        break;
      default:
        text.insert(at, kPieces[static_cast<std::size_t>(random.below(kPieces.size()))]);
    }
    if (text.empty()) text = "x";
  }
  return text;
}

TEST(ProgramText, AnswersMutatedTextWithAProgramOrAnError) {
  const std::string text = to_text(make_1f1b({.stages = 2, .microbatches = 2}));
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random = Rng(seed).stream("mutation");
    try {
      const Program program = parse_program(mutated(text, random), "p.txt");
      EXPECT_EQ(parse_program(to_text(program), "p.txt"), program);
    } catch (const Error& error) {
      ++refused;
      EXPECT_THAT(error.what(), testing::StartsWith("p.txt:"));
    }
  }
  EXPECT_GT(refused, 2500);  // most edits break something
}

TEST(ProgramText, NamesFileLineAndCulprit) {
  EXPECT_EQ(complaint(edited(kSmall, "m 4", "m four")),
            "p.txt:8: m: expected an integer, got \"four\"");
  EXPECT_EQ(complaint(edited(kSmall, "microbatch 2", "microbatch 3")),
            "p.txt:12: microbatch 3 is not in 0 to 2");
  EXPECT_EQ(complaint(edited(kSmall, "  1 all", "  2 all")),
            "p.txt:13: op 2 stands where op 1 is due");
  EXPECT_EQ(complaint(edited(kSmall, "lane dp after 0", "lane dp after 7")),
            "p.txt:13: after 7: the stage has 2 ops");
  EXPECT_EQ(complaint(edited(kSmall, "lane dp after 0", "lane dp after 1")),
            "p.txt:13: op 1 comes after itself");
  EXPECT_EQ(complaint(edited(kSmall, "lane dp", "lane up")),
            "p.txt:13: \"up\" is not one of compute, tp, cp, ep, pp, dp, host, replica, copy");
  EXPECT_EQ(complaint(edited(kSmall, "kernels 0 lane", "lane")), "p.txt:12: kernels is missing");
  EXPECT_EQ(complaint(edited(kSmall, "flops 240", "flops 240 flops 1")),
            "p.txt:8: flops stands twice");
  EXPECT_EQ(complaint(edited(kSmall, "bytes 148", "bytes 148 speed 3")),
            "p.txt:8: unknown key \"speed\" of a kernel");
  EXPECT_EQ(complaint(edited(kSmall, "memory_limit", "memory_top")),
            "p.txt:5: unknown keyword \"memory_top\"");
  EXPECT_EQ(complaint(edited(kSmall, "program 1", "program 2")),
            "p.txt:1: version of the text form 2 is not in 1 to 1");
}

TEST(ProgramText, RefusesAProgramThatIsNotWhole) {
  EXPECT_EQ(complaint(""), "p.txt:0: the line \"foresail_program 1\" is missing");
  EXPECT_THAT(complaint(edited(kSmall, "chunks 2\n", "")), HasSubstr("p.txt:9: grid, chunks"));
  EXPECT_EQ(complaint(edited(kSmall, "pp 1 order", "pp 2 order")),
            "p.txt:13: the program has 1 stages, but pp 2");
  EXPECT_THAT(complaint(edited(kSmall, "tp 1 cp 1", "tp 65536 cp 65536")),
              HasSubstr("p.txt:2: more ranks than"));
  EXPECT_THAT(complaint(edited(kSmall, "tp-cp-ep-dp-pp", "tp-cp")),
              HasSubstr("p.txt:2: rank order \"tp-cp\": ep is missing"));
}

}  // namespace
}  // namespace foresail::program
