#include "nccl_rules.h"

namespace foresail::sim {
namespace {

using topologies::Algorithm;
using topologies::Generation;
using topologies::Protocol;

bool is_gather_or_scatter(Collective kind) {
  return kind == Collective::AllGather || kind == Collective::ReduceScatter;
}

const char* refusal_of_protocol(Algorithm algorithm, Protocol protocol, const NcclShape& shape) {
  if (protocol == Protocol::Ll128 && shape.ranks_per_node() > 1 && !shape.has_nvlink) {
    return "LL128 needs NVLink between the GPUs of a node";
  }
  if (protocol == Protocol::Ll128 && shape.nodes > 1 && !shape.gpudirect) {
    return "LL128 between nodes needs GPUDirect";
  }
  if (protocol == Protocol::Simple) return nullptr;
  switch (algorithm) {
    case Algorithm::Nvls:
    case Algorithm::NvlsTree:
      return "NVLS and NVLS trees take the protocol Simple alone";
    case Algorithm::Pat:
      return "PAT takes the protocol Simple alone";
    case Algorithm::Hierarchical:
      return "the hierarchical algorithm takes the protocol Simple alone";
    case Algorithm::Pairwise:
      return protocol == Protocol::Ll128 ? "all_to_all has no LL128" : nullptr;
    case Algorithm::Auto:
    case Algorithm::Ring:
    case Algorithm::Tree:
      break;
  }
  return nullptr;
}

const char* refusal_of_nvls(const NcclShape& shape) {
  if (shape.generation < Generation::Hopper) return "NVLS needs GPUs of Hopper or later";
  if (!shape.has_nvlink) return "NVLS needs NVLink";
  return shape.ranks_per_node() > 2 ? nullptr : "NVLS needs three GPUs or more per node";
}

const char* refusal_of_algorithm(Collective kind, Algorithm algorithm, const NcclShape& shape) {
  const bool is_all_reduce = kind == Collective::AllReduce;
  switch (algorithm) {
    case Algorithm::Auto:
      break;
    case Algorithm::Ring:
      return kind == Collective::AllToAll ? "all_to_all is pairwise" : nullptr;
    case Algorithm::Tree:
      return is_all_reduce ? nullptr : "trees are for all_reduce alone";
    case Algorithm::Nvls:
      if (const char* const why = refusal_of_nvls(shape)) return why;
      if (shape.nodes > 1) return "NVLS is for one node alone (between nodes: nvls_tree)";
      if (is_all_reduce) return nullptr;
      if (!is_gather_or_scatter(kind)) {
        return "NVLS is for all_reduce, all_gather and reduce_scatter";
      }
      return shape.ranks <= kNvlsHeadsMax
                 ? nullptr
                 : "NVLS of all_gather and reduce_scatter takes 32 GPUs at most";
    case Algorithm::NvlsTree:
      if (const char* const why = refusal_of_nvls(shape)) return why;
      if (!is_all_reduce) return "NVLS trees are for all_reduce alone";
      if (shape.nodes < 2) return "NVLS trees need two nodes or more (on one: nvls)";
      return shape.ranks_per_node() <= kNvlsHeadsMax ? nullptr
                                                     : "NVLS trees take 32 GPUs per node at most";
    case Algorithm::Hierarchical:
      if (shape.nodes < 2 || shape.ranks_per_node() <= 1) {
        return "the hierarchical algorithm needs two nodes or more of two GPUs or more";
      }
      return is_all_reduce || is_gather_or_scatter(kind)
                 ? nullptr
                 : "the hierarchical algorithm is for all_reduce, all_gather and reduce_scatter";
    case Algorithm::Pat:
      if (!is_gather_or_scatter(kind)) return "PAT is for all_gather and reduce_scatter alone";
      if (shape.nodes != shape.ranks) return "PAT needs one GPU per node";
      return shape.nodes > 1 ? nullptr : "PAT needs two nodes or more";
    case Algorithm::Pairwise:
      return kind == Collective::AllToAll ? nullptr : "pairwise is for all_to_all alone";
  }
  return "no algorithm is named";
}

}  // namespace

const char* refusal(Collective kind, Algorithm algorithm, Protocol protocol,
                    const NcclShape& shape) {
  if (const char* const why = refusal_of_algorithm(kind, algorithm, shape)) return why;
  return refusal_of_protocol(algorithm, protocol, shape);
}

}  // namespace foresail::sim
