// The text form's reader: strict, every complaint with its line. text.cpp writes it.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "foresail/base/error.h"
#include "foresail/program/program.h"
#include "line_reader.h"

namespace foresail::program {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

/// Refuses a key that stands twice in one line.
class Keys {
 public:
  explicit Keys(const LineReader& line) : line_(line) {}
  void add(const std::string& key) {
    if (has(key)) line_.fail(fmt::format("{} stands twice", key));
    seen_.push_back(key);
  }
  bool has(std::string_view key) const { return std::ranges::find(seen_, key) != seen_.end(); }
  void demand(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys) {
      if (!has(key)) line_.fail(fmt::format("{} is missing", key));
    }
  }

 private:
  const LineReader& line_;
  std::vector<std::string> seen_;
};

class Parser {
 public:
  Program parse(std::string_view text, const std::string& name);

 private:
  void parse_line(LineReader& line);
  void parse_grid(LineReader& line);
  void parse_expert_grid(LineReader& line);
  static RankGrid take_grid(LineReader& line);
  void parse_communicator(LineReader& line);
  void parse_cut(LineReader& line, Communicator& communicator) const;
  void parse_kernel_list(LineReader& line);
  void parse_kernel(LineReader& line);
  void parse_stage(LineReader& line);
  void parse_memory(LineReader& line);
  void parse_op(LineReader& line);
  void parse_op_field(LineReader& line, const std::string& key, Op& op);
  void finish_stage(const LineReader& line);
  void finish(const LineReader& line);

  void demand(const LineReader& line, bool is_met, std::string_view what) const {
    if (!is_met) line.fail(fmt::format("{} must stand before this line", what));
  }
  std::uint32_t index(LineReader& line, std::string_view what, std::size_t count) const {
    return static_cast<std::uint32_t>(line.integer(what, 0, static_cast<std::int64_t>(count) - 1));
  }
  /// Declarations are numbered; the number must be the next one.
  void expect_number(LineReader& line, std::string_view what, std::size_t count) const {
    const std::int64_t number = line.integer(what, 0, kMaxInt);
    if (number != static_cast<std::int64_t>(count)) {
      line.fail(fmt::format("{} {} stands where {} {} is due", what, number, what, count));
    }
  }

  Program program_;
  bool has_header_ = false, has_grid_ = false, has_chunks_ = false, has_microbatches_ = false,
       has_limit_ = false, has_stage_map_ = false;
  bool is_in_kernels_ = false;
  /// The latest op that an `after` of the current stage names, and where.
  std::uint32_t furthest_ = 0;
  int furthest_line_ = 0;
  std::string_view name_;
  int line_ = 0;
};

RankGrid Parser::take_grid(LineReader& line) {
  Coordinates sizes{};
  std::int64_t world = 1;
  for (const auto& [axis, name] : kNames<Axis>) {
    line.expect(name);
    const std::int64_t size = line.integer(name, 1, kMaxInt);
    world *= size;
    if (world > kMaxInt) line.fail("more ranks than 2147483647");
    sizes[static_cast<std::size_t>(axis)] = static_cast<int>(size);
  }
  line.expect("order");
  const std::string order = line.take("rank order");
  try {
    return {sizes, parse_rank_order(order)};
  } catch (const Error& error) {
    line.fail(error.what());
  }
}

void Parser::parse_grid(LineReader& line) {
  demand(line, !has_grid_, "no other grid");
  program_.grid = take_grid(line);
  has_grid_ = true;
}

void Parser::parse_expert_grid(LineReader& line) {
  demand(line, has_grid_, "grid");
  demand(line, !program_.expert_grid, "no other expert_grid");
  demand(line, program_.communicators.empty(), "no communicator");
  program_.expert_grid = take_grid(line);
  const RankGrid& grid = program_.grid;
  const RankGrid& experts = *program_.expert_grid;
  if (experts.world_size() != grid.world_size()) {
    line.fail(fmt::format("expert_grid has {} ranks, but grid {}", experts.world_size(),
                          grid.world_size()));
  }
  if (experts.size(Axis::Pp) != grid.size(Axis::Pp) ||
      experts.groups({Axis::Pp}) != grid.groups({Axis::Pp})) {
    line.fail("the pipelines of expert_grid are not those of grid");
  }
}

void Parser::parse_communicator(LineReader& line) {
  demand(line, has_grid_, "grid");
  demand(line, program_.stages.empty(), "no line \"stage\"");
  expect_number(line, "communicator", program_.communicators.size());
  Communicator communicator;
  communicator.name = line.take("name of the communicator");
  line.expect("axes");
  const std::string axes = line.take("axes");
  std::string_view rest = axes == "none" ? std::string_view() : std::string_view(axes);
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(','));
    const std::optional<Axis> axis = from_string<Axis>(word);
    if (!axis) line.fail(fmt::format("axis \"{}\" is not one of {}", word, choices<Axis>()));
    if (communicator.axes.has(*axis)) line.fail(fmt::format("axis {} stands twice", word));
    communicator.axes.add(*axis);
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
  }
  if (line.peek() == "stages") {
    line.expect("stages");
    for (const std::uint32_t stage : line.list("stage", program_.grid.size(Axis::Pp))) {
      communicator.stages.push_back(static_cast<int>(stage));
    }
  }
  if (line.peek() == "grid") {
    line.expect("grid");
    communicator.grid = line.choice<GridKind>("grid");
    demand(line, communicator.grid == GridKind::Dense || program_.expert_grid, "expert_grid");
  }
  parse_cut(line, communicator);
  program_.communicators.push_back(std::move(communicator));
}

void Parser::parse_cut(LineReader& line, Communicator& communicator) const {
  const std::optional<Cut::Kind> kind = from_string<Cut::Kind>(line.peek());
  if (!kind || *kind == Cut::Kind::None) return;
  const std::string word = line.take("cut");
  if (communicator.axes.has(Axis::Pp)) line.fail("groups over pp cannot be cut into blocks");
  std::int64_t members = 1;
  for (const auto& entry : kNames<Axis>) {
    if (communicator.axes.has(entry.value)) members *= program_.grid.size(entry.value);
  }
  const std::int64_t size = line.integer("size of a block", 1, kMaxInt);
  if (members % size != 0) {
    line.fail(fmt::format("{} members % {} {} is not 0", members, word, size));
  }
  communicator.cut = {*kind, static_cast<int>(size)};
}

void Parser::parse_kernel_list(LineReader& line) {
  demand(line, program_.stages.empty(), "no line \"stage\"");
  expect_number(line, "kernels", program_.kernel_lists.size());
  program_.kernel_lists.push_back({line.take("name of the kernel list"), {}});
  is_in_kernels_ = true;
}

void Parser::parse_kernel(LineReader& line) {
  demand(line, is_in_kernels_, "a line \"kernels\"");
  std::vector<Kernel>& kernels = program_.kernel_lists.back().kernels;
  Kernel kernel;
  kernel.kind = line.choice<KernelKind>("kind of kernel");
  kernel.name = line.take("name of the kernel");
  kernel.dtype = line.choice<DType>("dtype");
  Keys keys(line);
  const std::pair<std::string_view, std::int64_t Kernel::*> numbers[] = {
      {"batch", &Kernel::batch},
      {"m", &Kernel::m},
      {"n", &Kernel::n},
      {"k", &Kernel::k},
      {"parts", &Kernel::parts},
      {"heads", &Kernel::heads},
      {"query_length", &Kernel::query_length},
      {"key_length", &Kernel::key_length},
      {"head_size", &Kernel::head_size},
      {"draws", &Kernel::draws}};
  while (!line.is_done()) {
    const std::string key = line.take("key");
    keys.add(key);
    const auto number =
        std::ranges::find(numbers, key, [](const auto& pair) { return pair.first; });
    if (number != std::end(numbers)) {
      kernel.*(number->second) = line.integer(key, 0, kMax);
    } else if (key == "is_backward") {
      kernel.is_backward = line.integer(key, 0, 1) == 1;
    } else if (key == "flops") {
      kernel.flops = Flops(line.number(key));
    } else if (key == "bytes") {
      kernel.bytes = Bytes(line.integer(key, 0, kMax));
    } else if (key == "collective") {
      kernel.collective = line.choice<Collective>(key);
    } else if (key == "lane") {
      kernel.lane = line.choice<Lane>(key);
    } else if (key == "after") {
      for (const std::uint32_t i : line.list("kernel", static_cast<std::int64_t>(kernels.size()))) {
        kernel.after.push_back(static_cast<int>(i));
      }
    } else {
      line.fail(fmt::format("unknown key \"{}\" of a kernel", key));
    }
  }
  if (kernel.kind == KernelKind::Collective) keys.demand({"collective"});
  kernels.push_back(std::move(kernel));
}

void Parser::parse_stage(LineReader& line) {
  demand(line, has_grid_ && has_chunks_ && has_microbatches_ && has_limit_,
         "grid, chunks, microbatches and memory_limit");
  finish_stage(line);
  expect_number(line, "stage", program_.stages.size());
  if (program_.stages.size() >= static_cast<std::size_t>(program_.grid.size(Axis::Pp))) {
    line.fail(
        fmt::format("stage {} of pp {}", program_.stages.size(), program_.grid.size(Axis::Pp)));
  }
  program_.stages.emplace_back();
  is_in_kernels_ = false;
}

void Parser::parse_memory(LineReader& line) {
  demand(line, !program_.stages.empty(), "a line \"stage\"");
  demand(line, program_.stages.back().ops.empty(), "none of the stage's ops");
  if (program_.memory.size() + 1 != program_.stages.size()) {
    line.fail("memory must stand once in every stage or in none");
  }
  MemoryNeed need;
  const std::pair<std::string_view, Bytes*> parts[] = {{"parameters", &need.parameters},
                                                       {"gradients", &need.gradients},
                                                       {"optimizer", &need.optimizer},
                                                       {"activations", &need.activations},
                                                       {"buffers", &need.buffers}};
  for (const auto& [key, part] : parts) {
    line.expect(key);
    *part = Bytes(line.integer(key, 0, kMax / 8));  // five of them add up without overflow
  }
  program_.memory.push_back(need);
}

void Parser::parse_op_field(LineReader& line, const std::string& key, Op& op) {
  if (key == "chunk") {
    op.chunk = static_cast<int>(line.integer(key, 0, program_.chunks - 1));
  } else if (key == "microbatch") {
    op.microbatch = static_cast<int>(line.integer(key, 0, program_.microbatches - 1));
  } else if (key == "to" || key == "from" || key == "peer_stage") {
    if ((key == "to" && op.kind != OpKind::Send) || (key == "from" && op.kind != OpKind::Recv)) {
      line.fail(fmt::format("\"{}\" does not fit {}", key, to_string(op.kind)));
    }
    if (key != "peer_stage") line.expect("stage");
    op.peer_stage = static_cast<int>(line.integer("stage", 0, program_.grid.size(Axis::Pp) - 1));
  } else if (key == "kernels") {
    op.kernels = KernelListId{index(line, "kernel list", program_.kernel_lists.size())};
  } else if (key == "bytes") {
    op.bytes = Bytes(line.integer(key, 0, kMax));
  } else if (key == "dtype") {
    op.dtype = line.choice<DType>(key);
  } else if (key == "communicator") {
    op.communicator = CommunicatorId{index(line, key, program_.communicators.size())};
  } else if (key == "lane") {
    op.lane = line.choice<Lane>(key);
  } else if (key == "pass") {
    op.pass = line.choice<Pass>(key);
  } else if (key == "payload") {
    op.payload = line.choice<Payload>(key);
  } else if (key == "collective") {
    op.collective = line.choice<Collective>(key);
  } else if (key == "host") {
    op.host = line.choice<HostWork>(key);
  } else if (key == "after") {
    for (const std::uint32_t id : line.list("op", kMaxInt)) op.after.push_back(OpId{id});
  } else {
    line.fail(fmt::format("unknown key \"{}\" of an op", key));
  }
}

void Parser::parse_op(LineReader& line) {
  demand(line, !program_.stages.empty(), "a line \"stage\"");
  IdVector<OpId, Op>& ops = program_.stages.back().ops;
  expect_number(line, "op", ops.size());
  Op op;
  Keys keys(line);
  const std::string kind = line.take("kind of op");
  if (const auto collective = from_string<Collective>(kind)) {
    op.kind = OpKind::Collective;
    op.collective = *collective;
    op.payload = line.choice<Payload>("payload");
    keys.add("collective");
    keys.add("payload");
  } else if (kind == "compute") {
    op.pass = line.choice<Pass>("pass");
    keys.add("pass");
  } else if (kind == "send" || kind == "recv") {
    op.kind = kind == "send" ? OpKind::Send : OpKind::Recv;
    op.payload = line.choice<Payload>("payload");
    keys.add("payload");
  } else if (kind == "host") {
    op.kind = OpKind::Host;
    op.host = line.choice<HostWork>("work");
    keys.add("host");
  } else {
    line.fail(fmt::format("\"{}\" is not one of compute, send, recv, host, {}", kind,
                          choices<Collective>()));
  }
  while (!line.is_done()) {
    const std::string key = line.take("key");
    keys.add(key);
    parse_op_field(line, key, op);
  }
  keys.demand({"lane"});
  if (op.kind == OpKind::Compute) keys.demand({"kernels"});
  if (op.kind == OpKind::Collective) keys.demand({"bytes", "dtype", "communicator"});
  if (op.kind == OpKind::Send) keys.demand({"to", "bytes", "dtype", "communicator"});
  if (op.kind == OpKind::Recv) keys.demand({"from", "bytes", "dtype", "communicator"});
  for (const OpId id : op.after) {
    if (id.value == ops.size()) line.fail(fmt::format("op {} comes after itself", id.value));
    if (id.value <= furthest_) continue;
    furthest_ = id.value;
    furthest_line_ = line_;
  }
  ops.push_back(std::move(op));
}

void Parser::finish_stage(const LineReader& line) {
  if (program_.stages.empty()) return;
  const std::size_t count = program_.stages.back().ops.size();
  if (furthest_line_ > 0 && furthest_ >= count) {
    LineReader({}, {name_, furthest_line_})
        .fail(fmt::format("after {}: the stage has {} ops", furthest_, count));
  }
  furthest_ = 0;
  furthest_line_ = 0;
  if (!program_.memory.empty() && program_.memory.size() != program_.stages.size()) {
    line.fail("memory must stand once in every stage or in none");
  }
}

void Parser::parse_line(LineReader& line) {
  const std::string_view first = line.peek();
  if (!has_header_) {
    line.expect("foresail_program");
    line.integer("version of the text form", 1, 1);
    has_header_ = true;
  } else if (from_string<KernelKind>(first)) {
    parse_kernel(line);
  } else if (!first.empty() && first.front() >= '0' && first.front() <= '9') {
    parse_op(line);
  } else {
    const std::string keyword = line.take("keyword");
    const auto count = [&](bool& has, std::int64_t low, std::int64_t high) {
      demand(line, !has, "no other line of this kind");
      has = true;
      return line.integer(keyword, low, high);
    };
    if (keyword == "grid") {
      parse_grid(line);
    } else if (keyword == "expert_grid") {
      parse_expert_grid(line);
    } else if (keyword == "chunks") {
      program_.chunks = static_cast<int>(count(has_chunks_, 1, kMaxInt));
    } else if (keyword == "stage_map") {
      demand(line, !has_stage_map_, "no other line of this kind");
      demand(line, program_.stages.empty(), "no line \"stage\"");
      has_stage_map_ = true;
      program_.stage_map = line.choice<StageMap>(keyword);
    } else if (keyword == "microbatches") {
      program_.microbatches = static_cast<int>(count(has_microbatches_, 1, kMaxInt));
    } else if (keyword == "memory_limit") {
      program_.memory_limit = Bytes(count(has_limit_, 0, kMax));
    } else if (keyword == "communicator") {
      parse_communicator(line);
    } else if (keyword == "kernels") {
      parse_kernel_list(line);
    } else if (keyword == "stage") {
      parse_stage(line);
    } else if (keyword == "memory") {
      parse_memory(line);
    } else {
      line.fail(fmt::format("unknown keyword \"{}\"", keyword));
    }
  }
  line.finish();
}

void Parser::finish(const LineReader& line) {
  if (!has_header_) line.fail("the line \"foresail_program 1\" is missing");
  demand(line, has_grid_ && has_chunks_ && has_microbatches_ && has_limit_,
         "grid, chunks, microbatches and memory_limit");
  finish_stage(line);
  const int stages = program_.grid.size(Axis::Pp);
  if (!GlobalStages::is_possible(program_.stage_map, stages, program_.chunks,
                                 program_.microbatches)) {
    line.fail(
        fmt::format("stage_map {} needs 2 chunks, an even pp and an even number of "
                    "microbatches, not {}, {} and {}",
                    to_string(program_.stage_map), program_.chunks, stages, program_.microbatches));
  }
  if (program_.stages.size() != static_cast<std::size_t>(stages)) {
    line.fail(fmt::format("the program has {} stages, but pp {}", program_.stages.size(), stages));
  }
}

Program Parser::parse(std::string_view text, const std::string& name) {
  name_ = name;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    ++line_;
    LineReader line(text.substr(begin, end - begin), {name_, line_});
    if (!line.is_done() && !line.peek().starts_with('#')) parse_line(line);
    begin = end + 1;
  }
  finish(LineReader({}, {name_, line_}));
  return std::move(program_);
}

}  // namespace

Program parse_program(std::string_view text, const std::string& name) {
  return Parser().parse(text, name);
}

}  // namespace foresail::program
