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

/// One of the GEMMs that a layer's product is cut into.
struct Part {
  int index = 0;
  int count = 1;
  std::int64_t rows = 0;
  std::int64_t of_whole = 1;  ///< Kernel::parts
  std::string name_of(const std::string& whole) const { return part_name(whole, index, count); }
};

Part part_of(const Share& share, int index, int count, std::int64_t rows) {
  return {index, count, rows, (share.tokens + rows / 2) / rows};
}

int forward_gemm(PassKernels& pass, const Linear& linear, const Part& part) {
  return pass.gemm(part.name_of(linear.name), linear.dtype,
                   {.m = part.rows, .n = linear.out, .k = linear.in, .parts = part.of_whole});
}

int input_gradient_gemm(PassKernels& pass, const Linear& linear, const Part& part) {
  return pass.gemm(part.name_of(linear.name + ".dgrad"), linear.dtype,
                   {.m = part.rows, .n = linear.in, .k = linear.out, .parts = part.of_whole});
}

void weight_gradient_gemm(PassKernels& pass, const Linear& linear) {
  pass.gemm(linear.name + ".wgrad", linear.dtype, {linear.out, linear.in, rows(pass, linear)},
            GemmResult::Accumulated);
}

Collective reduction(const Share& share) {
  return share.is_sequence_parallel ? Collective::ReduceScatter : Collective::AllReduce;
}

int gather(PassKernels& pass, const std::string& name, const Linear& linear) {
  return pass.exchange(name, Collective::AllGather, pass.share().tokens, linear.exchanged);
}

/// A GEMM's part and the gathers that it waits for.
struct GatheredPart {
  Part part;
  std::vector<int> gathers;
};

// All gathers are issued at once; each part of the GEMM waits for its own alone.
std::vector<GatheredPart> gathered_parts(PassKernels& pass, const std::string& name,
                                         const Linear& linear) {
  const Share& share = pass.share();
  if (!linear.is_pipelined) return {{{.rows = share.tokens}, {gather(pass, name, linear)}}};
  const std::vector<RowSlice> slices = gathered_slices(share.shard_tokens);
  const int count = static_cast<int>(slices.size()) + 1;
  std::vector<GatheredPart> parts{{part_of(share, 0, count, share.shard_tokens), {}}};
  for (int i = 1; i < count; ++i) {
    const std::int64_t rows = slices[static_cast<std::size_t>(i - 1)].rows;
    const Part part = part_of(share, i, count, (share.shards() - 1) * rows);
    parts.push_back({part,
                     {pass.exchange(part.name_of(name), Collective::AllGather,
                                    share.shards() * rows, linear.exchanged)}});
  }
  return parts;
}

std::vector<Part> reduced_parts(const Share& share, const Linear& linear) {
  if (!linear.is_pipelined) return {{.rows = share.tokens}};
  const std::vector<RowSlice> slices = reduced_slices(share.shard_tokens);
  const int count = static_cast<int>(slices.size());
  std::vector<Part> parts;
  for (int i = 0; i < count; ++i) {
    const std::int64_t rows = share.shards() * slices[static_cast<std::size_t>(i)].rows;
    parts.push_back(part_of(share, i, count, rows));
  }
  return parts;
}

int reduce(PassKernels& pass, const std::string& name, const Linear& linear, const Part& part) {
  return pass.exchange(part.name_of(name), reduction(pass.share()), part.rows, linear.exchanged);
}

// Input gradients of `linear`; each part is reduced as soon as its GEMM has ended.
std::vector<int> reduced_input_gradients(PassKernels& pass, const Linear& linear) {
  const Share& share = pass.share();
  const std::string name =
      (share.is_sequence_parallel ? "tp.scatter_" : "tp.reduce_") + linear.name;
  std::vector<int> issued;
  for (const Part& part : reduced_parts(share, linear)) {
    input_gradient_gemm(pass, linear, part);
    issued.push_back(reduce(pass, name, linear, part));
  }
  return issued;
}

}  // namespace

void plain_forward(PassKernels& pass, const Linear& linear) {
  cast(pass, linear, ".cast", rows(pass, linear) * linear.in);
  forward_gemm(pass, linear, {.rows = rows(pass, linear)});
}

void column_forward(PassKernels& pass, const Linear& linear) {
  if (!pass.share().is_sequence_parallel) {
    plain_forward(pass, linear);
    return;
  }
  for (const auto& [part, gathers] : gathered_parts(pass, "tp.gather_" + linear.name, linear)) {
    pass.await(gathers);
    cast(pass, linear, part.name_of(".cast"), part.rows * linear.in);
    forward_gemm(pass, linear, part);
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
  for (const Part& part : reduced_parts(share, linear)) {
    forward_gemm(pass, linear, part);
    reduced.push_back(reduce(pass, "tp.reduce_" + linear.name, linear, part));
  }
  pass.await(reduced);
}

void plain_backward(PassKernels& pass, const Linear& linear) {
  cast(pass, linear, ".cast_grad", rows(pass, linear) * linear.out);
  input_gradient_gemm(pass, linear, {.rows = rows(pass, linear)});
  weight_gradient_gemm(pass, linear);
}

void row_backward(PassKernels& pass, const Linear& linear) {
  if (!pass.share().is_sequence_parallel) {
    plain_backward(pass, linear);
    return;
  }
  const std::string name = "tp.gather_grad_" + linear.name;
  for (const auto& [part, gathers] : gathered_parts(pass, name, linear)) {
    pass.await(gathers);
    cast(pass, linear, part.name_of(".cast_grad"), part.rows * linear.out);
    input_gradient_gemm(pass, linear, part);
  }
  weight_gradient_gemm(pass, linear);
}

void column_backward(PassKernels& pass, const std::vector<Linear>& linears) {
  FORESAIL_EXPECT(!linears.empty());
  const Share& share = pass.share();
  const Linear& last = linears.back();
  std::vector<int> regathered;
  if (share.is_sequence_parallel) {
    regathered = {gather(pass, "tp.regather_" + last.name, last)};
    if (!share.is_async) pass.await(regathered);
  }
  for (const Linear& linear : linears) {
    cast(pass, linear, ".cast_grad", share.tokens * linear.out);
    if (&linear != &last || !share.is_tensor_parallel) {
      input_gradient_gemm(pass, linear, {.rows = share.tokens});
    }
  }
  std::vector<int> reduced;
  if (share.is_tensor_parallel) reduced = reduced_input_gradients(pass, last);
  if (!share.is_async) pass.await(reduced);
  if (share.is_async) pass.await(regathered);
  for (const Linear& linear : linears) weight_gradient_gemm(pass, linear);
  if (share.is_async) pass.await(reduced);
}

}  // namespace foresail::models
