#include "linear.h"

#include "foresail/base/error.h"

namespace foresail::models {
namespace {

std::int64_t rows(const PassKernels& pass, const Linear& linear) {
  return linear.tokens > 0 ? linear.tokens : pass.share().tokens;
}

// fp8 GEMMs need their operands cast, and transposed for the backward pass: some 4 bytes per
// element (read 2, write 1 and 1).
void cast(PassKernels& pass, const Linear& linear, const std::string& name, std::int64_t elements) {
  if (linear.dtype == DType::Fp8) pass.elementwise(linear.name + name, 4 * elements);
}

int forward_gemm(PassKernels& pass, const Linear& linear, int index, int count) {
  const std::int64_t tokens = chunk_tokens(rows(pass, linear), index, count);
  return pass.gemm(chunk_name(linear.name, index, count), linear.dtype,
                   {.m = tokens, .n = linear.out, .k = linear.in, .parts = count});
}

int input_gradient_gemm(PassKernels& pass, const Linear& linear, int index, int count) {
  const std::int64_t tokens = chunk_tokens(rows(pass, linear), index, count);
  return pass.gemm(chunk_name(linear.name + ".dgrad", index, count), linear.dtype,
                   {.m = tokens, .n = linear.in, .k = linear.out, .parts = count});
}

void weight_gradient_gemm(PassKernels& pass, const Linear& linear) {
  pass.gemm(linear.name + ".wgrad", linear.dtype, {linear.out, linear.in, rows(pass, linear)},
            GemmResult::Accumulated);
}

Collective reduction(const Share& share) {
  return share.is_sequence_parallel ? Collective::ReduceScatter : Collective::AllReduce;
}

std::vector<int> gather(PassKernels& pass, const std::string& name, const Linear& linear) {
  return {pass.chunk(name, Collective::AllGather, 0, 1, linear.exchanged)};
}

// All gathers are issued at once; GEMM i waits for gather i alone. The first of several parts is
// the rank's own shard, as in a ring exchange (Transformer Engine's userbuffers): it waits for
// nothing, and the gathers bring the others.
std::vector<std::vector<int>> gathers(PassKernels& pass, const std::string& name,
                                      const Linear& linear) {
  const int count = linear.chunks;
  if (count == 1) return {gather(pass, name, linear)};
  const Share& share = pass.share();
  const std::int64_t columns = linear.exchanged > 0 ? linear.exchanged : share.hidden;
  std::vector<std::vector<int>> awaited(1);
  for (int i = 1; i < count; ++i) {
    const std::int64_t tokens = chunk_tokens(share.tokens, i - 1, count - 1);
    awaited.push_back({pass.collective(chunk_name(name, i, count), Collective::AllGather,
                                       tokens * columns * share.element)});
  }
  return awaited;
}

// Input gradients of `linear`; each chunk is reduced as soon as its GEMM has ended.
std::vector<int> reduced_input_gradients(PassKernels& pass, const Linear& linear) {
  const Share& share = pass.share();
  const std::string name =
      (share.is_sequence_parallel ? "tp.scatter_" : "tp.reduce_") + linear.name;
  std::vector<int> issued;
  for (int i = 0; i < linear.chunks; ++i) {
    input_gradient_gemm(pass, linear, i, linear.chunks);
    issued.push_back(pass.chunk(name, reduction(share), i, linear.chunks, linear.exchanged));
  }
  return issued;
}

}  // namespace

void plain_forward(PassKernels& pass, const Linear& linear) {
  cast(pass, linear, ".cast", rows(pass, linear) * linear.in);
  forward_gemm(pass, linear, 0, 1);
}

void column_forward(PassKernels& pass, const Linear& linear) {
  if (!pass.share().is_sequence_parallel) {
    plain_forward(pass, linear);
    return;
  }
  const auto gathered = gathers(pass, "tp.gather_" + linear.name, linear);
  for (int i = 0; i < linear.chunks; ++i) {
    pass.await(gathered[static_cast<std::size_t>(i)]);
    cast(pass, linear, chunk_name(".cast", i, linear.chunks),
         chunk_tokens(pass.share().tokens, i, linear.chunks) * linear.in);
    forward_gemm(pass, linear, i, linear.chunks);
  }
}

void row_forward(PassKernels& pass, const Linear& linear) {
  const Share& share = pass.share();
  if (!share.is_tensor_parallel) {
    plain_forward(pass, linear);
    return;
  }
  cast(pass, linear, ".cast", share.tokens * linear.in);
  std::vector<int> reduced;
  for (int i = 0; i < linear.chunks; ++i) {
    forward_gemm(pass, linear, i, linear.chunks);
    reduced.push_back(pass.chunk("tp.reduce_" + linear.name, reduction(share), i, linear.chunks));
  }
  pass.await(reduced);
}

void plain_backward(PassKernels& pass, const Linear& linear) {
  cast(pass, linear, ".cast_grad", rows(pass, linear) * linear.out);
  input_gradient_gemm(pass, linear, 0, 1);
  weight_gradient_gemm(pass, linear);
}

void row_backward(PassKernels& pass, const Linear& linear) {
  if (!pass.share().is_sequence_parallel) {
    plain_backward(pass, linear);
    return;
  }
  const auto gathered = gathers(pass, "tp.gather_grad_" + linear.name, linear);
  for (int i = 0; i < linear.chunks; ++i) {
    pass.await(gathered[static_cast<std::size_t>(i)]);
    cast(pass, linear, chunk_name(".cast_grad", i, linear.chunks),
         chunk_tokens(pass.share().tokens, i, linear.chunks) * linear.out);
    input_gradient_gemm(pass, linear, i, linear.chunks);
  }
  weight_gradient_gemm(pass, linear);
}

void column_backward(PassKernels& pass, const std::vector<Linear>& linears) {
  FORESAIL_EXPECT(!linears.empty());
  const Share& share = pass.share();
  const Linear& last = linears.back();
  std::vector<int> regathered;
  if (share.is_sequence_parallel) {
    regathered = gather(pass, "tp.regather_" + last.name, last);
    if (!share.is_async) pass.await(regathered);
  }
  for (const Linear& linear : linears) {
    cast(pass, linear, ".cast_grad", share.tokens * linear.out);
    if (&linear != &last || !share.is_tensor_parallel) input_gradient_gemm(pass, linear, 0, 1);
  }
  std::vector<int> reduced;
  if (share.is_tensor_parallel) reduced = reduced_input_gradients(pass, last);
  if (!share.is_async) pass.await(reduced);
  if (share.is_async) pass.await(regathered);
  for (const Linear& linear : linears) weight_gradient_gemm(pass, linear);
  if (share.is_async) pass.await(reduced);
}

}  // namespace foresail::models
