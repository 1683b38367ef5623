// The text form's writer; parse.cpp reads what stands here (docs/reference/program.md).
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "foresail/base/error.h"
#include "foresail/program/program.h"

namespace foresail::program {
namespace {

using Out = fmt::memory_buffer;

template <class... Args>
void append(Out& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

bool is_bare(std::string_view name) {
  return !name.empty() && name.front() != '#' && std::ranges::all_of(name, [](char c) {
    return c > ' ' && c <= '~' && c != '"' && c != '\\';
  });
}

/// A name as one word: quoted, with two hexadecimal digits for anything unusual, if need be.
std::string word(std::string_view name) {
  if (is_bare(name)) return std::string(name);
  std::string quoted = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c >= ' ' && c <= '~') {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return quoted + '"';
}

template <class List, class Number>
std::string list(const List& items, Number number) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ',';
    text += std::to_string(number(item));
  }
  return text;
}

std::string axes_text(AxisSet axes) {
  std::string text;
  for (const auto& [axis, name] : kNames<Axis>) {
    if (!axes.has(axis)) continue;
    if (!text.empty()) text += ',';
    text += name;
  }
  return text.empty() ? "none" : text;
}

void append_grid(Out& out, std::string_view keyword, const RankGrid& grid) {
  append(out, "{}", keyword);
  for (const auto& [axis, name] : kNames<Axis>) append(out, " {} {}", name, grid.size(axis));
  append(out, " order {}\n", to_text(grid.order()));
}

void append_head(Out& out, const Program& program) {
  append(out, "foresail_program 1\n");
  append_grid(out, "grid", program.grid);
  if (program.expert_grid) append_grid(out, "expert_grid", *program.expert_grid);
  append(out, "chunks {}\n", program.chunks);
  if (program.stage_map != StageMap::Ring) {
    append(out, "stage_map {}\n", to_string(program.stage_map));
  }
  append(out, "microbatches {}\n", program.microbatches);
  append(out, "memory_limit {}\n", program.memory_limit.count());
  for (std::size_t i = 0; i < program.communicators.size(); ++i) {
    const Communicator& communicator = program.communicators[i];
    append(out, "communicator {} {} axes {}", i, word(communicator.name),
           axes_text(communicator.axes));
    if (!communicator.stages.empty()) {
      append(out, " stages {}", list(communicator.stages, [](int stage) { return stage; }));
    }
    if (communicator.grid != GridKind::Dense) {
      append(out, " grid {}", to_string(communicator.grid));
    }
    if (communicator.cut.kind != Cut::Kind::None) {
      append(out, " {} {}", to_string(communicator.cut.kind), communicator.cut.size);
    }
    append(out, "\n");
  }
}

void append_kernel(Out& out, const Kernel& kernel) {
  const Kernel usual;
  append(out, "  {} {} {}", to_string(kernel.kind), word(kernel.name), to_string(kernel.dtype));
  if (kernel.kind == KernelKind::Collective || kernel.collective != usual.collective) {
    append(out, " collective {}", to_string(kernel.collective));
  }
  if (kernel.lane != usual.lane) append(out, " lane {}", to_string(kernel.lane));
  const auto number = [&](std::string_view key, std::int64_t value, std::int64_t usual_value) {
    if (value != usual_value) append(out, " {} {}", key, value);
  };
  number("batch", kernel.batch, usual.batch);
  number("m", kernel.m, usual.m);
  number("n", kernel.n, usual.n);
  number("k", kernel.k, usual.k);
  number("parts", kernel.parts, usual.parts);
  number("heads", kernel.heads, usual.heads);
  number("query_length", kernel.query_length, usual.query_length);
  number("key_length", kernel.key_length, usual.key_length);
  number("head_size", kernel.head_size, usual.head_size);
  number("is_backward", kernel.is_backward ? 1 : 0, 0);
  number("draws", kernel.draws, 0);
  if (kernel.flops != usual.flops) append(out, " flops {}", kernel.flops.count());
  number("bytes", kernel.bytes.count(), 0);
  if (!kernel.after.empty()) {
    append(out, " after {}", list(kernel.after, [](int index) { return index; }));
  }
  append(out, "\n");
}

void append_op(Out& out, std::size_t index, const Op& op) {
  const Op usual;
  const bool is_message = op.kind == OpKind::Send || op.kind == OpKind::Recv;
  const bool is_communication = is_message || op.kind == OpKind::Collective;
  const bool is_compute = op.kind == OpKind::Compute;
  append(out, "  {} {}", index, describe(op));
  if (is_compute || op.kernels != usual.kernels) append(out, " kernels {}", op.kernels.value);
  if (is_communication || op.bytes != usual.bytes) append(out, " bytes {}", op.bytes.count());
  if (is_communication || op.dtype != usual.dtype) append(out, " dtype {}", to_string(op.dtype));
  if (is_communication || op.communicator != usual.communicator) {
    append(out, " communicator {}", op.communicator.value);
  }
  append(out, " lane {}", to_string(op.lane));
  // What the kind of op has no use for stands only if somebody set it.
  if (!is_compute && op.pass != usual.pass) append(out, " pass {}", to_string(op.pass));
  if (!is_communication && op.payload != usual.payload) {
    append(out, " payload {}", to_string(op.payload));
  }
  if (!is_message && op.peer_stage != usual.peer_stage) {
    append(out, " peer_stage {}", op.peer_stage);
  }
  if (op.kind != OpKind::Collective && op.collective != usual.collective) {
    append(out, " collective {}", to_string(op.collective));
  }
  if (op.kind != OpKind::Host && op.host != usual.host) append(out, " host {}", to_string(op.host));
  if (!op.after.empty()) append(out, " after {}", list(op.after, [](OpId id) { return id.value; }));
  append(out, "\n");
}

}  // namespace

std::string to_text(const Program& program) {
  FORESAIL_EXPECT(program.memory.empty() || program.memory.size() == program.stages.size());
  Out out;
  append_head(out, program);
  for (std::size_t i = 0; i < program.kernel_lists.size(); ++i) {
    append(out, "kernels {} {}\n", i, word(program.kernel_lists[i].name));
    for (const Kernel& kernel : program.kernel_lists[i].kernels) append_kernel(out, kernel);
  }
  for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
    append(out, "stage {}\n", stage);
    if (!program.memory.empty()) {
      const MemoryNeed& need = program.memory[stage];
      append(out, "  memory parameters {} gradients {} optimizer {} activations {} buffers {}\n",
             need.parameters.count(), need.gradients.count(), need.optimizer.count(),
             need.activations.count(), need.buffers.count());
    }
    std::size_t index = 0;
    for (const Op& op : program.stages[stage].ops) append_op(out, index++, op);
  }
  return fmt::to_string(out);
}

}  // namespace foresail::program
