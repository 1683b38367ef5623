#include "example.h"

#include <algorithm>
#include <tuple>

namespace foresail::report {
namespace {

constexpr const char* kProgram = R"(foresail_program 1
grid tp 2 cp 1 ep 1 dp 1 pp 2 order tp-cp-ep-dp-pp
chunks 1
microbatches 1
memory_limit 0
communicator 0 tp axes tp
communicator 1 pp axes pp
communicator 2 world axes tp,pp
kernels 0 pass
  gemm fc1 bf16 m 8 n 8 k 8 flops 1024 bytes 384
  collective tp.reduce bf16 collective all_reduce lane tp bytes 64 after 0
  gemm fc2 bf16 m 8 n 8 k 8 flops 1024 bytes 384 after 1
kernels 1 optimizer
  optimizer adam fp32 bytes 28
stage 0
0 host load_batch lane host
1 compute forward chunk 0 microbatch 0 kernels 0 lane compute after 0
2 send activation chunk 0 microbatch 0 to stage 1 bytes 64 dtype bf16 communicator 1 lane pp after 1
3 recv gradient chunk 0 microbatch 0 from stage 1 bytes 64 dtype bf16 communicator 1 lane pp
4 compute backward chunk 0 microbatch 0 kernels 0 lane compute after 3
5 all_reduce step_scalars bytes 8 dtype fp32 communicator 2 lane dp after 4
6 compute optimizer kernels 1 lane compute after 5
stage 1
0 recv activation chunk 0 microbatch 0 from stage 0 bytes 64 dtype bf16 communicator 1 lane pp
1 compute forward chunk 0 microbatch 0 kernels 0 lane compute after 0
2 compute backward chunk 0 microbatch 0 kernels 0 lane compute
3 send gradient chunk 0 microbatch 0 to stage 0 bytes 64 dtype bf16 communicator 1 lane pp after 2
4 all_reduce step_scalars bytes 8 dtype fp32 communicator 2 lane dp after 2
5 compute optimizer kernels 1 lane compute after 4
)";

SimTime at(double us) {
  return SimTime(duration_from_seconds(us * 1e-6));
}

}  // namespace

program::Program example_program() {
  return program::parse_program(kProgram, "example");
}

program::Span span(std::uint32_t rank, std::uint32_t op, double from, double to) {
  const program::Program program = example_program();
  const program::Op& own = program.of(RankId{rank}).ops[program::OpId{op}];
  return {RankId{rank}, own.lane, program::OpId{op}, -1, 0, at(from), at(to), own.bytes};
}

program::Span kernel_span(std::uint32_t rank, std::uint32_t op, int kernel, double from,
                          double to) {
  program::Span result = span(rank, op, from, to);
  const program::Program program = example_program();
  const Kernel& own = program.kernel_lists[0].kernels[static_cast<std::size_t>(kernel)];
  result.lane = own.lane;
  result.kernel = kernel;
  return result;
}

program::Trace example_trace() {
  program::Trace trace;
  trace.version = "0.1.0";
  trace.plan_digest = "aa";
  trace.program_digest = program::program_digest(example_program());
  trace.fidelity = "flow";
  trace.steps = {std::chrono::microseconds(20)};
  trace.spans = {span(0, 0, 0, 1),           span(0, 1, 1, 5),           kernel_span(0, 1, 0, 1, 2),
                 kernel_span(0, 1, 1, 2, 4), kernel_span(0, 1, 2, 4, 5), span(0, 2, 5, 6),
                 span(0, 3, 12, 13),         span(0, 4, 13, 17),         span(0, 5, 17, 18),
                 span(0, 6, 18, 20),         span(2, 0, 5, 6),           span(2, 1, 6, 8),
                 span(2, 2, 8, 12),          span(2, 3, 12, 13),         span(2, 4, 17, 18),
                 span(2, 5, 18, 20)};
  sort_spans(trace);
  return trace;
}

void sort_spans(program::Trace& trace) {
  std::ranges::sort(trace.spans, {}, [](const program::Span& each) {
    return std::tuple(each.step, each.rank, each.start, each.lane, each.op, each.kernel);
  });
}

}  // namespace foresail::report
